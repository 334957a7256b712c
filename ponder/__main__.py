from ponder.cli import main

raise SystemExit(main())
