"""Samples are of the same elements on every side and layout; statistics are those of the whole tensor."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from validator.capturing.levels import COARSEST, FEWEST, Level, kept, one_in_of
from validator.capturing.reader import open_capture
from validator.capturing.samples import scattered
from validator.capturing.session import capture
from validator.errors import CaptureError

SHARES = [1 << power for power in range(COARSEST.bit_length())]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 512)
        self.down = nn.Linear(512, 64)

    def forward(self, x, chosen):
        return self.down(torch.relu(self.up(x)))[chosen]


def recorded(path, level, **options):
    torch.manual_seed(0)
    model, x = Net(), torch.randn(128, 64)
    with capture(model, path, level=level, **options), torch.no_grad():
        model(x, torch.arange(100))
    return open_capture(path)


def call_of(captured, module):
    return next(call for call in captured.rank(0).calls if call.module == module)


def mask(shape, one_in, **where):
    flags = np.zeros(int(np.prod(shape)), dtype=bool)
    flags[kept(shape, one_in, **where)] = True
    return flags.reshape(shape)


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    shares=st.tuples(st.sampled_from(SHARES), st.sampled_from(SHARES)),
)
def test_the_coarser_of_two_samples_is_in_the_finer_one(shape, shares):
    coarse, fine = mask(shape, max(shares)), mask(shape, min(shares))
    assert not (coarse & ~fine).any()


@pytest.mark.parametrize("one_in", SHARES)
def test_every_row_and_every_column_has_its_share(one_in):
    flags = mask((256, 384), one_in)
    assert set(flags.sum(1)) == {384 // one_in}
    assert set(flags.sum(0)) == {256 // one_in}


def test_heads_and_rows_of_sequences_have_the_sample_of_rows_end_to_end():
    assert (mask((4, 32, 64), 8).reshape(128, 64) == mask((128, 64), 8)).all()


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_plain_shard_that_starts_at_a_multiple_has_the_elements_of_the_whole(dim):
    whole = mask((4, 64, 128), 32)
    for shard, part in enumerate(np.split(whole, 2, axis=dim)):
        assert (part == mask(part.shape, 32)).all(), shard


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_shard_whose_place_is_known_has_them_wherever_it_starts(dim):
    shape = (3, 37, 101)
    whole = mask(shape, 16)
    cut = shape[dim] // 3
    for start, part in zip((0, cut), np.split(whole, [cut], axis=dim), strict=True):
        starts = [start if d == dim else 0 for d in range(3)]
        assert (part == mask(part.shape, 16, starts=starts, whole=shape)).all()


def test_a_sample_has_some_thousands_of_elements_and_small_tensors_are_whole():
    for elements in (1, FEWEST, 2 * FEWEST - 1):
        assert one_in_of(Level.SAMPLE, "bfloat16", (elements,)) == 1
    for elements in (2 * FEWEST, 100_000, 1 << 24):
        share = one_in_of(Level.SAMPLE, "bfloat16", (elements,))
        assert share > 1
        assert len(kept((elements,), share)) >= FEWEST
    assert one_in_of(Level.SAMPLE, "bfloat16", (1 << 24,)) == COARSEST


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8", "complex64", "float4_e2m1fn_x2"])
@pytest.mark.parametrize("level", list(Level))
def test_what_decides_and_what_has_no_nan_is_whole_at_every_level(level, dtype):
    assert one_in_of(level, dtype, (1 << 20,)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_sample_is_put_back_bit_for_bit(dtype):
    tensor = torch.randn(64, 48).to(dtype)
    places = kept((64, 48), 8)
    flat = tensor.reshape(-1).view(torch.uint8).view(64 * 48, -1)
    values = flat[places].reshape(-1).view(dtype)
    back = scattered(values, (64, 48), one_in=8)
    assert back.shape == (64, 48)
    assert torch.equal(back.reshape(-1).view(torch.uint8).view(64 * 48, -1)[places], flat[places])
    others = np.setdiff1d(np.arange(64 * 48), places)
    assert back.float().reshape(-1)[others].isnan().all()


def test_a_sampled_capture_reads_nan_where_nothing_is_known(tmp_path):
    full, sampled = (recorded(tmp_path / f"{level}.h5", level) for level in ("full", "sample"))
    ours, theirs = call_of(sampled, "up").outputs[""], call_of(full, "up").outputs[""]
    whole, part = theirs.read(), ours.read()
    assert sampled.manifest.level is Level.SAMPLE
    assert ours.meta.one_in == 16
    known = ~part.isnan()
    assert int(known.sum()) == 128 * 512 // 16
    assert torch.equal(part[known], whole[known])
    assert torch.equal(torch.cat(list(ours.blocks())).nan_to_num(7), part.reshape(-1).nan_to_num(7))


@pytest.mark.parametrize("level", ["sample", "stats"])
def test_statistics_and_checksums_are_those_of_the_whole_tensor_at_every_level(tmp_path, level):
    full, thin = recorded(tmp_path / "full.h5", "full"), recorded(tmp_path / "thin.h5", level)
    for module in ("up", "down", ""):
        one, other = (call_of(captured, module).outputs[""].meta for captured in (full, thin))
        assert (one.checksum, one.statistics, one.shape) == (other.checksum, other.statistics, other.shape)


def test_at_stats_integers_are_read_and_floating_values_say_how_to_get_them(tmp_path):
    captured = recorded(tmp_path / "run.h5", "stats")
    call = call_of(captured, "")
    assert torch.equal(call.inputs["chosen"].read(), torch.arange(100))
    with pytest.raises(CaptureError, match=r"only statistics were kept.*--level sample or full"):
        call.inputs["x"].read()


@pytest.mark.parametrize("level", ["sample", "stats"])
def test_small_parameters_are_whole_and_of_large_ones_every_row_is_hashed(tmp_path, level):
    captured = recorded(tmp_path / "run.h5", level)
    parameters = captured.rank(0).parameters
    assert parameters["up.bias"].ref.read().shape == (512,)
    assert len(parameters["up.weight"].row_hashes) == 512


def test_a_sample_takes_a_fraction_of_the_bytes(tmp_path):
    sizes = {}
    for level in ("full", "sample"):
        model = nn.Sequential(nn.Identity())
        with capture(model, tmp_path / f"{level}.h5", level=level):
            for seed in range(4):
                torch.manual_seed(seed)
                model(torch.randn(1024, 1024))
        sizes[level] = (tmp_path / f"{level}.h5").stat().st_size
    assert sizes["sample"] * 30 < sizes["full"]


def test_the_same_bits_in_another_shape_have_a_sample_of_their_own(tmp_path):
    model = nn.Sequential(nn.Flatten(1))
    x = torch.randn(64, 8, 64)
    with capture(model, tmp_path / "run.h5", level="sample"):
        model(x)
    call = call_of(open_capture(tmp_path / "run.h5"), "0")
    for leaf, whole in ((call.inputs["input"], x), (call.outputs[""], x.flatten(1))):
        read = leaf.read()
        known = ~read.isnan()
        assert torch.equal(read[known], whole[known])
        assert int(known.sum()) == whole.numel() // leaf.meta.one_in


def test_an_unknown_level_is_named_with_those_there_are(tmp_path):
    with pytest.raises(CaptureError, match="level 'half' is not known; there are full, sample, stats"):
        recorded(tmp_path / "run.h5", "half")
