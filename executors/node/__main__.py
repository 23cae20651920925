"""`python -P -m executors.node --node ID`: serve a node; all other settings come from `MILLRACE_*`."""

import argparse

from executors.node.process import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m executors.node", description=__doc__)
    parser.add_argument("--node", help="the node to serve; MILLRACE_NODE if not given")
    serve(parser.parse_args().node)
