"""Runs the tests of rdma-core that the arguments name, and prints a line for each on standard
output: its end, its name and the reason, separated by tabs. What the tests print goes to standard
error. Without names, prints the names of all tests."""

import os
import sys
import traceback
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(FOLDER), FOLDER]
LINES = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Lines(unittest.TestResult):
    def line(self, end, test, reason=""):
        LINES.write("\t".join([end, test.id(), " ".join(str(reason).split())]) + "\n")
        LINES.flush()

    def startTest(self, test):
        super().startTest(test)
        print(test.id(), file=sys.stderr, flush=True)

    def addSuccess(self, test):
        self.line("passed", test)

    def addSkip(self, test, reason):
        self.line("skipped", test, reason)

    def addFailure(self, test, error):
        traceback.print_exception(*error)
        self.line("failed", test, f"{error[0].__name__}: {error[1]}")

    addError = addFailure


def tests(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests(test)
        else:
            yield test


def main():
    from args_parser import parser

    names, sys.argv[1:] = sys.argv[1:], ["--dev", "soft0"]
    parser.parse_args()
    import tests as package

    loader = unittest.defaultTestLoader
    if names:
        loader.loadTestsFromNames(names).run(Lines())
    else:
        for test in tests(loader.loadTestsFromModule(package)):
            LINES.write(test.id() + "\n")
        LINES.flush()


main()
