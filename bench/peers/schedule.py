"""What is timed, how often and in which order: plain functions, without torch."""
import re
from collections import Counter
from pathlib import Path

BACKWARD_FLOPS = 2.5  # of the forward's: five products for two (FlashAttention-2, section 4.1)


def problem_lines(path):
    """The problem lines of a file: one a line, '#' starts a comment."""
    lines = (line.split("#")[0].strip() for line in Path(path).read_text().splitlines())
    return [" ".join(line.split()) for line in lines if line]


def has_words(line, words):
    """Has the problem line all of the words? "forward" and "dense" stand for what a line leaves out."""
    have = set(line.split())
    have |= {"forward"} - ({"forward"} if "backward" in have else set())
    have |= {"dense"} - ({"dense"} if "causal" in have else set())
    return set(words.split()) <= have


def sequence_lengths(line):
    """[(queries, keys)] of a problem line with varlen; None without."""
    word = next((w for w in line.split() if w.startswith("varlen:")), None)
    if word is None:
        return None
    lists = dict(part.split("=") for part in word.removeprefix("varlen:").split(":"))
    queries, keys = ([int(n) for n in lists[name].split(",")] for name in "qk")
    return list(zip(queries, keys, strict=True))


def pairs(queries, keys, causal, left, right):
    """Pairs of a query and a key that it sees, as FLOPs are counted: half of all when causal alone. Windows reach
    from a query's own key, which is the last one for the last query; -1: no end."""
    if left < 0 and (causal or right < 0):
        return queries * keys * (0.5 if causal else 1)
    right = 0 if causal else right
    seen = 0
    for query in range(queries):
        own = query + keys - queries
        last = keys - 1 if right < 0 else min(keys - 1, own + right)
        seen += max(0, last - (max(0, own - left) if left >= 0 else 0) + 1)
    return seen


def flops(p, lengths=None):
    """FlashAttention's convention: 4 d for each head and pair, the backward 2.5 times as many. lengths: of
    the sequences, when there are several."""
    each = lengths or [(p.seqlen_q, p.seqlen_k)] * p.batch
    seen = sum(n * pairs(*one, p.causal, p.window_left, p.window_right) for one, n in Counter(each).items())
    return 2.0 * p.num_heads * seen * (p.head_dim + p.head_dim_v) * (BACKWARD_FLOPS if p.direction == 1 else 1)


def short(line):
    """The line, long lists of lengths cut."""
    return re.sub(r"((?:\d+,){3})[\d,]+", r"\1...", line)


def turn(names, number):
    """The order of a round: rotated by one each round, and every other one reversed."""
    at = number % len(names)
    order = names[at:] + names[:at]
    return order[::-1] if number % 2 else order


def repeats(ms, slice_ms, most=25):
    """Calls in a burst of about slice_ms, each with its flush of the cache (0.1 ms); at least one."""
    return max(1, min(most, int(slice_ms / (ms + 0.1))))


class Budget:
    """Hands out what is left of some seconds in equal parts to the cells that are left."""

    def __init__(self, seconds, cells, clock):
        self.clock, self.end, self.left, self.overhead = clock, clock() + seconds, cells, 0.0

    def next_cell(self, least=0.2):
        """Seconds to spend on timing the next cell; the rest of it is expected to take what it took so far."""
        share = (self.end - self.clock()) / max(1, self.left) - self.overhead
        self.left -= 1
        return max(least, share)

    def took(self, overhead):
        """Seconds that a cell took besides those it was given."""
        self.overhead = overhead if self.overhead == 0 else 0.7 * self.overhead + 0.3 * overhead
