"""`python -m tests.bench.bare FOLDER BATCH TOKENS`: MLX alone, without a server.

Prints decode tokens a second of mlx_lm's own BatchGenerator, greedy, as the runner's engine
uses it, and the seconds to the first token of the batch.
"""

from __future__ import annotations

import json
import sys
import time

from infrastructure.blas import set_up

PROMPT_TOKENS = 40


def main(folder: str, batch: int, tokens: int) -> None:
    """Measure once, after a warm-up."""
    set_up("")
    from mlx_lm import load
    from mlx_lm.generate import BatchGenerator

    model = load(folder)[0]
    for count in (4, tokens):
        generator = BatchGenerator(model, max_tokens=count)
        generator.insert([list(range(100, 100 + PROMPT_TOKENS)) for _ in range(batch)])
        began = time.perf_counter()
        first = last = 0.0
        made = 0
        while made < batch * count:
            responses = generator.next_generated()
            made += len(responses)
            last = time.perf_counter()
            if responses and not first:
                first = last
        generator.close()
    print(
        json.dumps({"tokens_per_s": batch * (tokens - 1) / (last - first), "ttft": first - began})
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
