"""``python -m shiva_container``: see check.py."""

from .check import main

raise SystemExit(main())
