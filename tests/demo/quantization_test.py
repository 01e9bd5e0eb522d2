#!/usr/bin/env python3
"""scripts/quantization_error tells how far quantised layers and pictures are off: quantization_test.py DIPTYCH"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support

DIPTYCH = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None


class QuantizationError(unittest.TestCase):
    def tell(self, *flags):
        """{first words of a line: the others}"""
        script = support.ROOT / "scripts" / "quantization_error"
        with tempfile.TemporaryDirectory(prefix="diptych_quantization_") as folder:
            done = subprocess.run([sys.executable, script, "--diptych", DIPTYCH, "--output-dir", folder, *flags],
                                  capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line.split() for line in done.stdout.splitlines() if line]

    def test_layers_and_pictures(self):
        lines = self.tell("--pictures", "1", "--steps", "5")
        cosines = {words[0]: [float(word) for word in words[1:]] for words in lines[2:4]}
        for kind, least in (("fp8", 0.999), ("int8", 0.9999)):
            first, median, smallest, last, latent = cosines[kind]
            self.assertLess(least, smallest, kind)
            self.assertLessEqual(smallest, min(median, last), kind)
            self.assertLess(max(cosines[kind]), 1, kind)
        pictures = {words[0]: words[1:] for words in lines[5:]}
        self.assertEqual([words[1:3] for words in pictures.values()], [["of", "1"]] * 3)
        for kind, least in (("fp8", 0.9), ("int8", 0.99)):
            mean, smallest = map(float, pictures[kind][-2:])
            self.assertLessEqual(smallest, mean)
            self.assertLess(least, smallest, kind)


if __name__ == "__main__":
    if DIPTYCH is None:
        sys.exit(__doc__)
    unittest.main()
