import subprocess
import sys

import pytest

from attnbench.analysis.metrics import LATENCY
from attnbench.analysis.rows import rows_of
from attnbench.analysis.series import series_of
from attnbench.render.styles import StyleBook, assign_looks, dash_pattern, style_data
from tests.analysis.synthetic import make_record, make_run


def book_and_labels(records):
    series = series_of(rows_of({"run": make_run(records)}), LATENCY)
    return StyleBook(series), [one.label for one in series]


@pytest.mark.parametrize("count", [12, 60])
def test_no_two_curves_look_alike(count):
    records = [make_record(f"kernel-{place}", latency_ms=1.0) for place in range(count)]
    book, labels = book_and_labels(records)
    assert len({(book[label].color, book[label].marker, book[label].dash) for label in labels}) == count


def test_no_two_curves_of_one_implementation_look_alike():
    records = [make_record("linear", latency_ms=1.0, options={"chunk_size": size}) for size in range(60)]
    book, labels = book_and_labels(records)
    assert {(book[label].color, book[label].marker) for label in labels} == {("purple", "v")}
    assert len({book[label].dash for label in labels}) == 60


def test_the_known_ones_keep_their_look_and_no_other_takes_it():
    names = [*style_data()["implementations"], *(f"mine-{place}" for place in range(50))]
    looks = assign_looks(names)
    assert looks["naive"] == ("grey", "o")
    assert looks["sdpa"] == ("blue", "s")
    assert len(set(looks.values())) == len(names)


def test_a_name_keeps_its_look_whoever_else_is_there():
    alone = assign_looks(["./my_kernel.py"])["./my_kernel.py"]
    others = ["naive", "sdpa", "linear", "another", "third"]
    assert assign_looks(["./my_kernel.py", *others])["./my_kernel.py"] == alone
    code = (
        "from attnbench.render.styles import assign_looks\n"
        "print(assign_looks(['./my_kernel.py'])['./my_kernel.py'])"
    )
    other_process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other_process.stdout.strip() == str(alone)


def test_a_lone_unknown_name_does_not_share_a_colour_with_the_first_five():
    used = {style_data()["implementations"][name]["color"] for name in ("naive", "sdpa", "triton-flash")}
    for name in ("./my_kernel.py", "lstm", "performer", "mamba", "linformer"):
        assert assign_looks([name])[name][0] not in used


def test_dashes_begin_solid():
    assert dash_pattern(0) == ()
    assert len({dash_pattern(place) for place in range(40)}) == 40


def test_the_plain_curve_is_solid_and_others_follow_in_order_of_appearance():
    window = {"name": "sliding-window", "window_size": 64, "causal": True}
    records = [make_record("linear", latency_ms=1.0, options={"chunk_size": size}) for size in (512, 64)]
    records += [make_record("linear", latency_ms=1.0), make_record("linear", latency_ms=1.0, mask=window)]
    book, labels = book_and_labels(records)
    dashes = [dash_pattern(place) for place in range(4)]
    order = sorted(labels, key=lambda label: dashes.index(book[label].dash))
    assert order == ["linear", "linear (chunk_size=512)", "linear (chunk_size=64)", "linear (window 64)"]
