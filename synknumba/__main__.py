"""`python -m synknumba`."""

import sys

from synknumba._cli import main

sys.exit(main())
