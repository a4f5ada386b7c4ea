"""What every Antiphon service shares; imports no torch and no numpy."""

import os

# gRPC's fork handlers start its threads again in every forked child, and about one in thirty
# children of a busy process then dies before its exec. No child here uses gRPC between fork
# and exec. gRPC reads this when it is imported, so it stands before everything else; a set value
# stays.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
