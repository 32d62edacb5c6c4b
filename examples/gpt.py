"""A transformer learns to write, letter by letter, from the help texts that come with Python.

It reads the language reference in `pydoc_data.topics` for about half a minute, then writes a page
of its own: English-looking words, the layout of the help pages, no sense.
Run it longer for more of each:  python examples/gpt.py [steps]
"""

import sys
import time
from pydoc_data.topics import topics

import numpy as np

import everyo as eo

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 800
BATCH, TIME, WIDTH, HEADS, BLOCKS, RATE = 24, 48, 96, 4, 2, 4e-3

text = "\n\n".join(topics[name] for name in sorted(topics))
letters = sorted({c for c in text if c.isascii()})
number = {c: i for i, c in enumerate(letters)}
ids = np.array([number[c] for c in text if c in number])
train, held_out = ids[: -len(ids) // 10], ids[-len(ids) // 10 :]
print(f"{len(train)} letters to read, {len(held_out)} held out, {len(letters)} different ones")


class GPT(eo.Module):
    """Scores of the next letter at every place: ids (N, T) -> (N, T, letters)."""

    def __init__(self):
        super().__init__()
        self.letters = eo.Embedding(len(letters), WIDTH, seed=0)
        self.places = eo.Embedding(TIME, WIDTH, seed=1)
        self.encoder = eo.TransformerEncoder(WIDTH, HEADS, num_layers=BLOCKS, dropout=0.0, seed=2)
        self.head = eo.Linear(WIDTH, len(letters), initializer="xavier_uniform", seed=3)
        self.register_buffer("mask", eo.causal_mask(TIME))

    def forward(self, ids):
        time = ids.shape[1]
        x = self.letters(ids) + self.places(np.arange(time))
        return self.head(self.encoder(x, mask=self.mask[:, :, :time, :time]))


model = GPT()
loss_fn = eo.CrossEntropyLoss()
optimizer = eo.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
print(f"{model.num_parameters()} parameters")


def scores_and_targets(batch):
    """Scores (N * T, letters) and the letters that followed (N * T,), for pieces (N, T + 1)."""
    scores = model(batch[:, :-1])
    return scores.reshape(-1, len(letters)), batch[:, 1:].reshape(-1)


@eo.compile
def train_step(batch):
    """One step of AdamW on BATCH pieces of text; their mean loss."""
    optimizer.zero_grad()
    loss = loss_fn(*scores_and_targets(batch))
    loss.backward()
    eo.clip_grad_norm(model.parameters(), 1.0)
    optimizer.step()
    return loss


def pieces(source, rng, count):
    """Random pieces of TIME + 1 letters."""
    starts = rng.integers(0, len(source) - TIME, count)
    return source[starts[:, None] + np.arange(TIME + 1)]


rng = np.random.default_rng(0)
began, recent = time.perf_counter(), []
for step in range(1, STEPS + 1):
    optimizer.lr = RATE * min(step / 50, 0.5 * (1 + np.cos(np.pi * step / (STEPS + 1))))
    recent.append(train_step(pieces(train, rng, BATCH)).item())
    if step % (STEPS // 6) == 0 or step == STEPS:
        mean = np.mean(recent[-50:])
        seconds = time.perf_counter() - began
        print(f"Step {step}/{STEPS}  loss={mean:.3f}  {seconds:.1f} s", flush=True)


@eo.compile
def next_scores(window):
    """Scores of the letter that follows a window (1, TIME)."""
    return model(window)[0, -1]


def written(prompt, count, temperature=0.6):
    """The prompt and `count` letters more, each drawn by its probability."""
    page = [number[c] for c in prompt]
    for _ in range(count):
        scores = next_scores(np.array([page[-TIME:]])).numpy() / temperature
        chances = np.exp(scores - scores.max())
        page.append(int(rng.choice(len(letters), p=chances / chances.sum())))
    return "".join(letters[i] for i in page)


model.eval()
with eo.no_grad():
    opening = 'The "for" statement\n*******************\n\nThe "for" statement is used to '
    page = written(opening, 500)
    scores, targets = scores_and_targets(pieces(held_out, np.random.default_rng(1), 200))
print("-" * 72)
print(page)
print("-" * 72)
words = page[len(opening) :].split()[1:-1]
known = set(text.split())
print(f"{sum(word in known for word in words)} of its {len(words)} words occur in the help texts")
print(f"Next letter guessed right in held-out text: {100 * eo.accuracy(scores, targets):.1f}%")
