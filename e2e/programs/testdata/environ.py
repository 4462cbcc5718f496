"""Writes what this worker finds to FOUND.RANK: its environment, its arguments, where it is."""
import json
import os
import sys

found = os.environ["FOUND"] + "." + os.environ["RANK"]
with open(found + ".new", "w") as out:
    json.dump({"environ": dict(os.environ), "argv": sys.argv, "program": sys.executable, "folder": os.getcwd()}, out)
os.replace(found + ".new", found)
