"""An encoder that kills its process; in a file of its own, since each process imports the file."""

import os
import signal


class Mortal:
    """An encoder that its process does not survive, once it meets a certain text."""

    def encode(self, texts: tuple[str, ...]) -> str:
        if "die" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        return texts[0]
