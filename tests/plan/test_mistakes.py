"""Every mistake in a suite is one line that names file, line, table, key and the nearest valid name."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench.contract.errors import UsageError
from attnbench.plan.settings import METRICS, MeasureSettings
from attnbench.plan.suite import load_suite

SWEEP = 'seqlen = 64\nimplementation = "naive"\n'
Write = Callable[[str], Path]


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        (f"[[sweep]]\n{SWEEP}seqlens = 1", 6, "sweep 1: unknown key 'seqlens' (did you mean 'seqlen'?)"),
        (
            f"[[sweep]]\n{SWEEP}[[sweep]]\nhead_dims = 1",
            7,
            "sweep 2: unknown key 'head_dims' (did you mean 'head_dim'?)",
        ),
        (f"[default]\n[[sweep]]\n{SWEEP}", 3, "top level: unknown key 'default' (did you mean 'defaults'?)"),
        (f"[measure]\nmetric = []\n[[sweep]]\n{SWEEP}", 4, "[measure]: unknown key 'metric' (did you mean"),
        (
            f'[measure]\nmetrics = ["latncy"]\n[[sweep]]\n{SWEEP}',
            4,
            f"[measure]: metrics: expected quantities to measure, a list of {', '.join(METRICS)}; "
            "got 'latncy' (did you mean 'latency'?)",
        ),
        (
            f"[measure]\nmetrics = []\n[[sweep]]\n{SWEEP}",
            3,
            "[measure]: metrics is an empty list; there are latency, memory",
        ),
        (
            f'[measure]\nmetrics = ["flops", "flops"]\n[[sweep]]\n{SWEEP}',
            3,
            "[measure]: metrics names flops more than once",
        ),
        (
            '[[sweep]]\nlevel = "model"\npreset = "tiny"\nimplementation = "naive"\n'
            "seqlen_q = 4\nseqlen_k = 9",
            3,
            "sweep 1: seqlen_q, seqlen_k: at level 'model', decoder-only reads one sequence, not 4 and 9",
        ),
        (f"[[sweep]]\nthreads = 1000000\n{SWEEP}", 3, "sweep 1: threads = 1000000: at most "),
        (f"[[sweep]]\nbatch = 10000000000\n{SWEEP}", 3, "sweep 1: batch must be at most 16777216"),
        (
            f'[[sweep]]\nseqlen = "{10**50}k"\nimplementation = "naive"',
            3,
            "sweep 1: a length of 51 digits is not one",
        ),
        (
            f"[measure]\ncase_timeout_s = 0\n[[sweep]]\n{SWEEP}",
            4,
            "case_timeout_s: expected seconds above 0 that a case may take; got 0",
        ),
        (
            f'[defaults]\nmode = ["fwd", "fwd-bwd"]\n[[sweep]]\n{SWEEP}',
            4,
            "[defaults]: mode: expected fwd, bwd, fwd_bwd or decode; got 'fwd-bwd' (did you mean 'fwd_bwd'?)",
        ),
        (f'[[sweep]]\nhead_dim = "64"\n{SWEEP}', 4, "sweep 1: head_dim: expected a whole number, or a list"),
        (f"[[sweep]]\nhead_dim = -64\n{SWEEP}", 4, "or a list of them; got -64"),
        (
            '[[sweep]]\nseqlen = 1.5\nimplementation = "naive"',
            4,
            "seqlen: expected a length such as 1024 or '4k'",
        ),
        ('[[sweep]]\nseqlen = "4kb"\nimplementation = "naive"', 3, "'4kb' is not a length"),
        ('[[sweep]]\nseqlen = []\nimplementation = "naive"', 3, "sweep 1: seqlen is an empty list"),
        ('[[sweep]]\nseqlen_q = 4\nimplementation = "naive"', 3, "the key 'seqlen_k' is missing"),
        ('[[sweep]]\nimplementation = "naive"', 3, "the key 'seqlen_q' is missing; give 'seqlen', or"),
        ("[[sweep]]\nseqlen = 4", 3, "the key 'implementation' is missing"),
        (f"[[sweep]]\nseqlen_k = 4\n{SWEEP}", 3, "'seqlen' and 'seqlen_k' exclude each other"),
        (
            f"[defaults]\nbatch = 4\ntokens = 8\n[[sweep]]\n{SWEEP}",
            3,
            "[defaults]: 'tokens' and 'batch' exclude each other",
        ),
        (f"[[sweep]]\nhidden = 100\n{SWEEP}", 3, "hidden = 100 is not a multiple of head_dim = 64"),
        (f"[[sweep]]\nnum_kv_heads = 3\n{SWEEP}", 3, "num_heads=8 is not divisible by num_kv_heads=3"),
        (
            f"[[sweep]]\nkey_lengths = [65]\n{SWEEP}",
            3,
            "key_lengths must lie within 0 and seqlen_k=64, not 65",
        ),
        (f"[[sweep]]\nkey_lengths = [1, 2]\n{SWEEP}", 3, "key_lengths has 2 entries for a batch of 1"),
        (
            f"[[sweep]]\nkey_lengths = [1, [2]]\n{SWEEP}",
            3,
            "key_lengths is a list of whole numbers, or a list of such",
        ),
        (f"[[sweep]]\nscale = inf\n{SWEEP}", 3, "scale must be finite"),
        (f'[[sweep]]\nmask = "casual"\n{SWEEP}', 3, "unknown mask 'casual' (did you mean 'causal'?)"),
        (
            f'[[sweep]]\nmask = "sliding-window"\n{SWEEP}',
            3,
            "mask 'sliding-window' needs window_size, as { name = \"sliding-window\", window_size = 256 }",
        ),
        (
            f'[[sweep]]\nmask = {{ name = "sliding-window", window = 4 }}\n{SWEEP}',
            3,
            "has no parameter 'window' (did you mean 'window_size'?)",
        ),
        (
            f'[[sweep]]\nmask = {{ name = "sliding-window", window_size = 0 }}\n{SWEEP}',
            3,
            "window_size must be a positive",
        ),
        (
            "[[sweep]]\nseqlen = 4\nimplementation = { chunk_size = 4 }",
            3,
            "implementation: a table without a name",
        ),
        (
            '[[sweep]]\nseqlen = 4\nimplementation = "naiv"',
            3,
            "unknown implementation 'naiv' (did you mean 'naive'?)",
        ),
        (
            "[[sweep]]\nseqlen = 4\nimplementation = { name = 'linear', chunk_siz = 3 }",
            3,
            "sweep 1: linear has no option 'chunk_siz' (did you mean 'chunk_size'?); it takes chunk_size",
        ),
        (
            "[defaults]\nimplementation = [{ name = 'naive', chunk_size = 3 }]\n[[sweep]]\nseqlen = 4",
            5,
            "sweep 1: naive has no option 'chunk_size'; it takes none",
        ),
        ('[[sweep]]\nseqlen = 4\nimplementation = "./gone.py"', 3, "no file './gone.py'"),
        (
            '[[sweep]]\nseqlen = 4\nimplementation = "attnbench.gone:THING"',
            3,
            "can't be imported: ModuleNotFoundError",
        ),
        (
            f'[[sweep]]\npreset = "gpt2"\n{SWEEP}',
            3,
            "'preset' has no meaning at level 'attention', only at block and model",
        ),
        (
            f'[[sweep]]\nlevel = "model"\nhead_dim = 4\n{SWEEP}',
            3,
            "'head_dim' has no meaning at level 'model'",
        ),
        (f'[[sweep]]\nlevel = "model"\n{SWEEP}', 3, "level 'model' needs a preset"),
        (f'[[sweep]]\nlevel = "model"\npreset = "gpt3"\n{SWEEP}', 3, "(did you mean 'gpt2'?)"),
        (f'[[sweep]]\ninputs = "text"\n{SWEEP}', 3, "inputs = 'text' has no meaning at level 'attention'"),
        (
            f'[[sweep]]\nlevel = "block"\npreset = "gpt2"\ninputs = "outlier"\n{SWEEP}',
            3,
            "inputs = 'outlier' has no meaning at level 'block', only at attention",
        ),
        (
            f'[[sweep]]\nlevel = "block"\npreset = "tiny"\ncheckpoint = true\n{SWEEP}',
            3,
            "checkpoint = true has no meaning at level 'block', only at model",
        ),
        (
            f'[[sweep]]\nlevel = "model"\npreset = "tiny"\ncheckpoint = [false, true]\n{SWEEP}',
            3,
            "checkpoint = true has no meaning in mode 'fwd', only in bwd and fwd_bwd",
        ),
        (
            f'[[sweep]]\nlevel = "model"\npreset = "tiny-bert"\narchitecture = "decoder-only"\n{SWEEP}',
            3,
            "head: masked-language belongs to encoder-only, not to decoder-only",
        ),
        (
            f'[[sweep]]\nmode = "decode"\nbatch = 2\nkey_lengths = [64, 0]\n{SWEEP}',
            3,
            "mode 'decode': contexts hold what is new, so at least 1, not 0",
        ),
        (
            f'[[sweep]]\nmode = "decode"\nquery_start = 7\n{SWEEP}',
            3,
            "query_start: in mode 'decode' new tokens stand behind their context",
        ),
        (f'[[sweep]]\ndevice = "gpu"\n{SWEEP}', 3, "unknown device 'gpu'"),
        (f'[[sweep]]\ndevice = "cuda:1"\n{SWEEP}', 3, "a suite says cuda; `--device cuda:1` chooses one"),
        (f"[[sweep]]\nthreads = 0\n{SWEEP}", 4, "threads: expected CPU threads, 1 or more"),
        (f"[[sweep]]\n{SWEEP}[[sweep]]\n{SWEEP}", 6, "sweep 2: the case attention/naive/fwd/causal/n64/"),
        ('[[sweep]]\nseqlen = ["1k", 1024]\nimplementation = "naive"', 3, "is in sweep 1 (line 3) already"),
        ("", 1, "the key 'sweep' is missing"),
        ("defaults = 3", 3, "defaults: expected a table: keys of every sweep; got"),
        (f"[[sweeps]]\n{SWEEP}", 3, "unknown key 'sweeps' (did you mean 'sweep'?)"),
        ("sweep = []", 3, "sweep: expected one [[sweep]] table or more"),
    ],
)
def test_mistakes_are_named(write: Write, body: str, line: int, message: str) -> None:
    path = write(body)
    with pytest.raises(UsageError) as caught:
        load_suite(path)
    text = str(caught.value)
    assert text.startswith(f"{path}:{line}: ")
    assert message in text
    assert "\n" not in text


def test_not_toml(write: Write) -> None:
    path = write("[[sweep]\n")
    with pytest.raises(UsageError, match=r"try.toml: not TOML: .*line 3"):
        load_suite(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown suite 'quik' \(did you mean 'quick'\?\); there are"):
        load_suite("quik")
    with pytest.raises(UsageError, match=r"can't read the suite '.*gone.toml': No such file"):
        load_suite(tmp_path / "gone.toml")
    with pytest.raises(UsageError, match=r"can't read the suite '.*': Is a directory"):
        load_suite(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(UsageError, match="not UTF-8"):
        load_suite(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"implementations": ["sdpa-flsh"]},
            "unknown implementation 'sdpa-flsh' (did you mean 'sdpa-flash'?)",
        ),
        ({"seqlens": ["many"]}, "'many' is not a length"),
        ({"device": "cuda:77"}, "no device 'cuda:77' on this machine; there is"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
    ],
)
def test_mistakes_on_the_command_line(write: Write, overrides: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_suite(write(f"[[sweep]]\n{SWEEP}"), **overrides)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_text(f'name = "marked"\n[[sweep]]\n{SWEEP}', encoding="utf-8-sig")
    assert load_suite(path).name == "marked"


def test_suites_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    path = tmp_path / "注意.toml"
    path.write_text(f'name = "注意"\ndescription = "µs"\n[[sweep]]\n{SWEEP}', encoding="utf-8")
    code = """
import sys
from attnbench.plan.suite import load_suite
print(ascii(load_suite(sys.argv[1]).name))
"""
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": "."}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == ascii("注意")


HOLDER = """
import sys
from dataclasses import replace
from attnbench.implementations.naive import IMPLEMENTATION as NAIVE
print("imported")
ONE = replace(NAIVE, name="one", options={"block_size": 16})
IMPLEMENTATIONS = (ONE, replace(ONE, name="two", options={}))
"""


def test_options_of_somebody_s_file(write: Write, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(HOLDER)
    right = f"[[sweep]]\nseqlen = 4\nimplementation = {{ name = '{kernel}#one', block_size = 8 }}"
    (case,) = load_suite(write(right)).cases
    assert case.options == {"block_size": 8}
    for changed, words in (
        (("block_size", "block_siz"), "has no option 'block_siz' (did you mean 'block_size'?)"),
        (("#one", ""), "kernel.py#two has no option 'block_size'; it takes none"),
        (("#one", "#three"), "does not name one of its variants (one, two)"),
    ):
        with pytest.raises(UsageError) as caught:
            load_suite(write(right.replace(*changed)))
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("import os; os._exit(0)", "ends the process that imports it (exit status 0)"),
        ("import ctypes; ctypes.string_at(0)", "ends the process that imports it (SIGSEGV)"),
        ("import sys; sys.exit('no licence')", "can't be imported: SystemExit: no licence"),
    ],
)
def test_a_file_that_ends_whoever_imports_it(write: Write, tmp_path: Path, deed: str, message: str) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(deed)
    path = write(f'[[sweep]]\nseqlen = 4\nimplementation = "{kernel}"')
    with pytest.raises(UsageError) as caught:
        load_suite(path)
    assert str(caught.value) == f"{path}:3: sweep 1: {str(kernel)!r} {message}"


def test_a_file_that_takes_too_long(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("import time; time.sleep(600)")
    monkeypatch.setattr("attnbench.plan.files.IMPORT_TIMEOUT_S", 1.0)
    with pytest.raises(UsageError, match="takes longer than 1 s"):
        load_suite(write(f"[[sweep]]\n{SWEEP}"), implementations=[str(kernel)])


def test_without_options_no_implementation_is_imported(write: Write) -> None:
    code = "import sys; from attnbench.plan.suite import load_suite; load_suite(sys.argv[1])"
    command = [
        sys.executable,
        "-c",
        f"{code}; print('torch' in sys.modules)",
        str(write(f"[[sweep]]\n{SWEEP}")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("metrics", "message"), [((), "empty"), (("flops", "flops"), "flops more than once")]
)
def test_settings_measure_something_and_nothing_twice(metrics, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MeasureSettings(metrics=metrics)
