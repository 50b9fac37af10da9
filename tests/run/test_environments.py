"""Each fork server has the variables that its kind of work needs, before anything is imported."""

from attnbench.device.environment import environment
from attnbench.run.environments import server_environment


def test_only_the_interpreting_server_interprets(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    native = server_environment(interpreted=False, threads=4)
    interpreted = server_environment(interpreted=True, threads=4)
    assert "TRITON_INTERPRET" not in native
    assert interpreted["TRITON_INTERPRET"] == "1"
    assert native["OMP_NUM_THREADS"] == native["MKL_NUM_THREADS"] == "4"
    assert interpreted["OMP_NUM_THREADS"] == "1"
    assert native["OPENBLAS_NUM_THREADS"] == interpreted["OPENBLAS_NUM_THREADS"] == "1"


def test_fusing_multiply_and_add_is_set_on_purpose_and_recorded(monkeypatch):
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
    for value in ("1", "0"):
        assert environment()["variables"]["TRITON_DEFAULT_FP_FUSION"] == value
        for interpreted in (False, True):
            chosen = server_environment(interpreted=interpreted, threads=1)
            assert chosen["TRITON_DEFAULT_FP_FUSION"] == value
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")


def test_one_gpu_is_shown_by_its_uuid(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    chosen = server_environment(interpreted=False, threads=1, visible_gpu="GPU-123")
    assert chosen["CUDA_VISIBLE_DEVICES"] == "GPU-123"
    assert server_environment(interpreted=False, threads=1)["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_runs_share_no_cache_of_compiled_kernels(monkeypatch, tmp_path):
    """E09: two processes that fill one cache can spoil it for each other."""
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
        caches = {
            server_environment(interpreted=False, threads=1, scratch=tmp_path / run)[variable]
            for run in ("first", "second")
        }
        assert len(caches) == 2
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    assert server_environment(interpreted=False, threads=1, scratch=tmp_path)["TRITON_CACHE_DIR"] == "/mine"
