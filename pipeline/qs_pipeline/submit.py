"""The command `qs-pipeline` as a file for spark-submit, whose programs need a name that ends with .py:

spark-submit --master URL "$(python -c 'import qs_pipeline.submit as s; print(s.__file__)')" archive ...
"""

import os
import sys

if __name__ == "__main__":
    # Python puts the directory of a program first, where the modules of this package would be found without its name.
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != os.path.dirname(os.path.abspath(__file__))]
    from qs_pipeline.command import main

    sys.exit(main())
