"""Token ids of `sluice tokenize` beside those of tiktoken on the same vocabulary files.

The other side is the reference's own recipe: tiktoken with the pattern of the release as it stands
there (class intersections and all), behind the same guards, written again here in Python. Both entry
points are compared, id by id, on a mixed text of 10 MB, on long runs of one kind, and on every code
point there is in a few contexts.

Letters and digits that are newer than either side's Unicode tables may be cut differently. The sweep
over all code points lists each of them; they count as a failure only when Python's own tables know
the character, that is when it is not new at all.

    python3 tests/crosscheck/tokenizer_tiktoken.py [FOLDER...]

FOLDER holds tiktoken.model and tokenizer_config.json; default: those of models/, $SLUICE_SHARED
(default ../shared) and $SLUICE_K3_TOKENIZER that are there. SLUICE names the program (build/sluice),
CROSSCHECK_MB the size of the mixed text in MB (10). Needs the package tiktoken.
"""

import base64
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

try:
    import tiktoken
except ImportError:
    print("SKIP tokenizer: the Python package tiktoken is not installed")
    sys.exit(0)

SLUICE = os.environ.get("SLUICE", "build/sluice")
SHARED = os.environ.get("SLUICE_SHARED", "../shared")
MB = float(os.environ.get("CROSSCHECK_MB", "10"))

PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


class Reference:
    def __init__(self, folder):
        ranks = {}
        with open(os.path.join(folder, "tiktoken.model"), "rb") as f:
            for line in f.read().splitlines():
                if line:
                    token, rank = line.split()
                    ranks[base64.b64decode(token)] = int(rank)
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as f:
            named = json.load(f)["added_tokens_decoder"]
        n = len(ranks)
        self.control = {
            named[str(i)]["content"] if str(i) in named else f"<|reserved_token_{i}|>": i
            for i in range(n, n + 256)
        }
        self.enc = tiktoken.Encoding(
            name="reference", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.control
        )
        self.byte_count = {i: len(b) for b, i in ranks.items()}
        self.byte_count.update({i: len(s.encode()) for s, i in self.control.items()})

    @staticmethod
    def guards(text):
        """400,000 characters at a time; inside, runs of one kind are cut at 25,000."""
        for base in range(0, len(text), 400_000):
            part = text[base : base + 400_000]
            start = at = 0
            for _, run in itertools.groupby(part, str.isspace):
                n = sum(1 for _ in run)
                while n > 25_000:
                    at += 25_000
                    n -= 25_000
                    yield part[start:at]
                    start = at
                at += n
            yield part[start:]

    def ids(self, text, markup):
        how = {"allowed_special": "all"} if markup else {"disallowed_special": ()}
        out = []
        for part in self.guards(text):
            out += self.enc.encode(part, **how)
        return out


def sluice_ids(folder, text, markup, work):
    path = os.path.join(work, "text")
    with open(path, "wb") as f:
        f.write(text.encode())
    cmd = [SLUICE, "tokenize", folder, *(["--markup"] if markup else []), "--json", "--file", path]
    t = time.perf_counter()
    run = subprocess.run(cmd, capture_output=True)
    t = time.perf_counter() - t
    if run.returncode != 0:
        raise RuntimeError(f"exit {run.returncode}: {run.stderr.decode(errors='replace').strip()}")
    return json.loads(run.stdout)["ids"], t


def mixed_text(size, control):
    """Deterministic, every script and habit that the pattern has a branch for."""
    r = random.Random(20260)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(r.choices(letters, range(26, 0, -1), k=r.randint(1, 11))) for _ in range(4000)]

    def one_of(lo, hi):
        return lambda: chr(r.randrange(lo, hi))

    def many(make, most):
        return "".join(make() for _ in range(r.randint(1, most)))

    han = [one_of(0x4E00, 0xA000), one_of(0x4E00, 0x4F00), one_of(0x3400, 0x4DC0),
           one_of(0x20000, 0x20100), one_of(0x31350, 0x31360), one_of(0x2F00, 0x2F20),
           lambda: r.choice("々〇〆〻〡〢、。「」ー")]
    other = [one_of(0x3040, 0x3100), one_of(0xAC00, 0xD7A4), one_of(0x0600, 0x0700),
             one_of(0x0E00, 0x0E60), one_of(0x0900, 0x0980), one_of(0x05D0, 0x05EB)]
    blank = [" ", "  ", "\t", "\n", "\r\n", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\u180e",
             "\u200b", "\x1c", "\x1f", "\x85", "\x0b"]
    emoji = ["👍🏽", "👨‍👩‍👧", "🎉", "❤️", "🇩🇪", "1️⃣", "😀", "🏳️‍🌈", "™️"]
    tails = ["'s", "'T", "'re", "'VE", "'m", "'ll", "'d", "'\u017f", "\u2019s", "'", "''s", "'x"]
    signs = "!?.,;:'\"()[]{}<>|/\\+-*=&^%$#@~`_"
    names = sorted(control)
    kinds = [
        lambda: " ".join(r.choice(words) for _ in range(r.randint(1, 25))),
        lambda: " ".join(r.choice(words).capitalize() for _ in range(r.randint(1, 6))),
        lambda: r.choice(words) + r.choice(tails) + r.choice(["", " "]) + r.choice(words).upper(),
        lambda: many(lambda: r.choice("aAbBzZéÉßΩωЖжǅʰªİıſK"), 24),
        lambda: many(r.choice(han), 30),
        lambda: many(lambda: r.choice(han)() + r.choice(other)(), 8),
        lambda: many(r.choice(other), 20),
        lambda: many(lambda: r.choice(letters) + "".join(chr(r.randrange(0x300, 0x370))
                                                         for _ in range(r.randint(0, 4))), 9),
        lambda: many(lambda: chr(r.randrange(0x300, 0x370)), 6) + r.choice(words),
        lambda: many(lambda: r.choice(emoji), 6),
        lambda: many(lambda: r.choice(blank), 9),
        lambda: r.choice(blank) * r.randint(1, r.choice([3, 40, 4000])),
        lambda: str(r.randrange(10 ** r.randint(1, 16))) + r.choice(["", ".5", "٣٤", "½", "Ⅷ"]),
        lambda: many(lambda: r.choice(signs), 12) + r.choice(["", "\n", "\r\n\r\n", "x"]),
        lambda: r.choice(names),
        lambda: r.choice(names)[: r.randint(1, 9)],
        lambda: r.choice("ab!か漢É\u0301 \n") * r.randint(1, r.choice([30, 3000])),
        lambda: chr(r.choice([0x1C89, 0x1C8A, 0xA7CB, 0x1E030, 0x10D50, 0x10D70, 0x11F02, 0x1E4F0,
                              0x1CCF0, 0x11F50, 0x16D40, 0x0897, 0x2EBF0])) + r.choice(words),
    ]
    out, n = [], 0
    while n < size:
        s = r.choice(kinds)() + r.choice(["", "", " ", "\n"])
        out.append(s)
        n += len(s.encode())
    return "".join(out)


def run_texts():
    """Long runs: past both guards, and around their edges."""
    yield "runs of one character", "\n".join(c * 60_000 for c in "aA!7か漢\u0301\u00e9") + " " * 60_000
    yield "runs at the edge of 25,000", "".join(
        k * n + o for k, o in (("x", " "), (" ", "x"), ("\n", "y"), ("\x1c", "!"))
        for n in (24_999, 25_000, 25_001, 50_000, 50_001))
    yield "slices of 400,000", ("word " * 80_000)[:399_999] + "漢字" * 3 + "ab" * 7 + " tail" * 90_000
    yield "one piece over several runs", ("!" * 24_000 + "\x1c") * 17
    yield "control spellings across cuts", "x" + "<|open|>" * 9_000 + "[BOS]" * 6_000
    yield "letters that step back", ("か" * 300 + "A" * 300) * 60 + "かA" * 12_000 + "\n" + "Aか" * 9_000


def compare(name, ref, folder, text, markup, work):
    want = ref.ids(text, markup)
    got, secs = sluice_ids(folder, text, markup, work)
    if got == want:
        return f"ok {name}: {len(text.encode())} bytes, {len(want)} ids equal, {secs:.2f} s of sluice"
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    where = sum(ref.byte_count[i] for i in want[:at])
    near = text.encode()[max(0, where - 20) : where + 40].decode(errors="replace")
    return (f"FAIL {name}: id {at} (byte {where}, near {near!r}): sluice {got[at : at + 6]}, "
            f"tiktoken {want[at : at + 6]}; {len(got)} and {len(want)} ids")


def cuts(ids, byte_count):
    out, at = set(), 0
    for i in ids:
        at += byte_count[i]
        out.add(at)
    return out


def ranges(points):
    """Ascending code points as U+A..U+B."""
    out = []
    for p in points:
        if out and p == out[-1][1] + 1:
            out[-1][1] = p
        else:
            out.append([p, p])
    return " ".join(f"U+{a:04X}" if a == b else f"U+{a:04X}..U+{b:04X}" for a, b in out)


def sweep(name, ref, folder, work):
    """Every code point in contexts that tell the classes apart, one line each."""
    lines = [f"A{c}b{c}C {c} {c}9{c}!{c}{c}x'{c}" for c in map(chr, range(0x20, 0x110000))
             if not 0xD800 <= ord(c) < 0xE000]
    text = "\n".join(lines)
    want = ref.ids(text, False)
    got, _ = sluice_ids(folder, text, False, work)
    if got == want:
        return [f"ok {name}: {len(lines)} code points, {len(want)} ids equal, none to list"]
    a, b = cuts(got, ref.byte_count), cuts(want, ref.byte_count)
    new, old, at = [], [], 0
    for s in lines:
        end = at + len(s.encode()) + 1
        if any((k in a) != (k in b) for k in range(at + 1, end + 1)):
            (old if unicodedata.category(s[1]) != "Cn" else new).append(ord(s[1]))
        at = end
    out = [f"newer than one side's tables, cut differently: {ranges(new)}"] if new else []
    if old or not new:
        out.append(f"FAIL {name}: characters of Unicode {unicodedata.unidata_version} differ: {ranges(old)}")
    else:
        out.append(f"ok {name}: {len(lines)} code points, {len(new)} new ones listed")
    return out


def sweep_folder(work):
    """A vocabulary in which the cuts of the pattern show: every line of the sweep is made of tokens
    that join neighbours two by two, so that a piece never has the same ids as its halves."""
    folder = os.path.join(work, "sweep")
    os.makedirs(folder)
    tokens = [bytes([i]) for i in range(256)]
    tails = [bytes([i]) for i in range(0x80, 0xC0)]
    ascii_ends = [bytes([c]) for c in b"ABCbx9!' \n"]
    leads = [bytes([i]) for i in range(0xC2, 0xF5)]
    tokens += [a + b for a in ascii_ends for b in ascii_ends + leads]
    tokens += [a + b for a in tails for b in ascii_ends + leads]
    with open(os.path.join(folder, "tiktoken.model"), "wb") as f:
        for i, t in enumerate(tokens):
            f.write(base64.b64encode(t) + f" {i}\n".encode())
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"added_tokens_decoder": {str(len(tokens)): {"content": "[BOS]"}}}, f)
    return folder


def folders():
    if sys.argv[1:]:
        return sys.argv[1:]
    places = ["models/k3-nano", f"{SHARED}/models/k3-nano", f"{SHARED}/models/k3-mini",
              f"{SHARED}/fixtures/tiny-a", f"{SHARED}/fixtures/tiny-b"]
    if os.path.exists(f"{places[0]}/tiktoken.model"):
        del places[1]
    places.append(os.environ.get("SLUICE_K3_TOKENIZER", ""))
    return [p for p in places if p and os.path.exists(f"{p}/tiktoken.model")]


def main():
    if not os.access(SLUICE, os.X_OK):
        print(f"SKIP tokenizer: {SLUICE} is not there")
        return 0
    found = folders()
    if not found:
        print("SKIP tokenizer: no folder with a tiktoken.model")
        return 0
    bad = 0

    def say(line):
        nonlocal bad
        bad += line.startswith("FAIL")
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as work:
        folder = sweep_folder(work)
        for line in sweep("every code point", Reference(folder), folder, work):
            say(line)
        for folder in found:
            ref = Reference(folder)
            label = os.path.basename(os.path.normpath(folder))
            texts = [("mixed text", mixed_text(int(MB * 1e6), ref.control)), *run_texts()]
            for (what, text), markup in itertools.product(texts, (False, True)):
                how = "markup" if markup else "plain"
                say(compare(f"{label}, {what}, {how}", ref, folder, text, markup, work))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
