"""``python -m shiva_container``: see command.py."""

from .command import main

raise SystemExit(main())
