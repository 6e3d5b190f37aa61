"""The command `qs-pipeline` as a file for spark-submit, whose programs need a name that ends with .py:

spark-submit --master URL "$(python -c 'import qs_pipeline.submit as s; print(s.__file__)')" archive ...
"""

import os
import sys

if __name__ == "__main__":
    # Python puts a program's directory first on the path: this package's modules would be found as top-level ones.
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != os.path.dirname(os.path.abspath(__file__))]
    from qs_pipeline.command import main

    sys.exit(main())
