"""The launcher of the wheel."""

import os
import subprocess
import sys

import pytest

from rdma_collectives import soft


@pytest.fixture(autouse=True)
def has_launcher():
    try:
        soft.launcher()
    except FileNotFoundError as error:
        if os.environ.get("RDMA_TEST_WHEEL"):
            raise
        pytest.skip(str(error))


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)


LOADS = "import ctypes; print(ctypes.CDLL('libibverbs.so.1').ibv_get_device_list(None) != 0)"


def test_a_program_has_the_software_device():
    main = "import sys; from rdma_collectives import soft; soft.main()"
    done = run(sys.executable, "-c", main, "--devices", "2", sys.executable, "-c", LOADS)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    done = run(sys.executable, "-c", main, "--no-such-option")
    assert done.returncode == 2 and "--no-such-option" in done.stderr


def test_the_plugin_runs_tests_on_the_software_device(tmp_path):
    test = tmp_path / "test_one.py"
    test.write_text(f"def test_one():\n    {LOADS.replace('print', 'assert ')}\n")
    plugin = ("-p", "rdma_collectives.soft", "-p", "no:cacheprovider")
    done = run(sys.executable, "-m", "pytest", *plugin, "--soft-rdma", "--soft-rdma-options", "--devices 2", "-q", test)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
