"""The launcher `soft-rdma` of the wheel, and a plugin for pytest.

`soft-rdma PROGRAM` runs any program that uses libibverbs or librdmacm on the software device: see
`soft-rdma --help`. With `-p rdma_collectives.soft`, pytest has the option `--soft-rdma`, which runs
pytest itself, and so all programs that the tests start, under the launcher.
"""

from __future__ import annotations

import os
import sys

#: The variable of a process that `--soft-rdma` has started.
_UNDER = "RDMA_COLLECTIVES_UNDER_SOFT_RDMA"


def launcher():
    """The path of the launcher `soft-rdma`."""
    path = os.path.join(os.path.dirname(__file__), "bin", "soft-rdma")
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path}: this build of rdma_collectives has no launcher; install a wheel")
    return path


def main():
    """Becomes the launcher, with the arguments of this program."""
    path = launcher()
    os.execv(path, [path, *sys.argv[1:]])


def pytest_addoption(parser):
    """Adds the options of the plugin."""
    group = parser.getgroup("soft-rdma")
    group.addoption("--soft-rdma", action="store_true", help="run the tests on the software RDMA device")
    group.addoption(
        "--soft-rdma-options", default="", metavar="OPTIONS", help="options of the launcher, such as '--devices 2'"
    )


def pytest_cmdline_main(config):
    """Becomes the launcher, which runs pytest again."""
    if not config.getoption("--soft-rdma") or os.environ.get(_UNDER):
        return None
    import shlex

    path = launcher()
    options = shlex.split(config.getoption("--soft-rdma-options"))
    os.environ[_UNDER] = "1"
    command = [path, *options, sys.executable, "-m", "pytest", *config.invocation_params.args]
    sys.stdout.flush()
    os.execv(path, command)
