"""`python -m kvtier_bench`, the same as `kvtier`."""

import sys

from kvtier_bench.cli import main

sys.exit(main())
