"""What must hold of the port that `[tool.validator]` in pyproject.toml names.

pytest                          these tests
validator run alignment         a suite that ships
validator check port.py --plant attn-scale:layer=1    does the set-up see a fault?
"""


def test_every_layer_computes_what_the_reference_computes(validation):
    """Every layer of the port computes what the reference computes."""
    validation.check()


# More of the same, on other inputs or ranks; `@pytest.mark.validator(nproc=2)` says what a test runs with:
#
# def test_a_long_prompt(validation):
#     """A prompt of 512 tokens is computed as the reference computes it."""
#     validation.check(inputs={"input_ids": torch.arange(512).remainder(256).view(1, 512)})
#
# def test_the_norm_kernel(validation):
#     """The norm's kernel is right to 1 ulp."""
#     validation.assert_aligned(ref=norm(x.double()), cand=kernel(x), max_ulp=1)
