from validator.report import phrases


def test_places_are_ranges_and_long_lists_are_cut() -> None:
    where = {"tokens": [3, 4, 5, 9], "channels": list(range(0, 20, 2)), "heads": None, "experts": [7]}
    assert phrases.places(where) == "tokens 3-5, 9; channels 0, 2, 4, 6 and 6 more; expert 7"


def test_of_ranges_that_are_not_listed_the_indices_are_counted() -> None:
    where = {"tokens": [0, 3, 4, 5, 7, 14, *range(20, 40)], "spans": ["a", "b", "c", "d", "e"], "scale": 0.5}
    assert phrases.places(where) == "tokens 0, 3-5, 7, 14 and 20 more; spans a, b, c, d and 1 more; scale 0.5"


def test_a_shape_names_the_dims_whose_meaning_is_known() -> None:
    shown = phrases.shape((2, 16, 4), ("batch", "token", ""))
    assert shown.replace(phrases.NO_BREAK_SPACE, " ") == "[B=2, S=16, 4]"


def test_several_modules_are_counted_and_one_is_named() -> None:
    assert phrases.group(["lm_head"]) == "lm_head"
    assert phrases.group([""]) == "(the model itself)"
    assert phrases.group(["model.norm", "lm_head", ""]) == "3 modules (model.norm, ...)"
