"""``python -m fuseproof``: the command."""

import sys

from fuseproof.cli import main

sys.exit(main())
