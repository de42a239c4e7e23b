"""Write the sentences of the small checkpoint: WordNet usage examples and generated ones.

    python make_text.py --wordnet DIR(data.noun ...) --dictionary cmudict-en-us.dict --out FOLDER

Writes train.jsonl (one {"id", "text", "voice"} a line), heldout.txt (60 short sentences) and heldout-long.txt (20 of 12 to 25
words); no held-out sentence is in any training line. Voices: 0 slt, 1 awb, 2 rms, 3 kal16. All draws start from fixed seeds.
"""
import argparse, json, os, random, re

HARVARD_STYLE = """The small boat drifted toward the quiet shore.
Pour the hot tea into the blue cup.
A strong wind blew the old gate open.
The farmer sold six brown horses at the fair.
She kept the letter under a heavy stone.
Both dogs slept beside the warm stove.
Cut the bread into thin even slices.
The train will leave at half past nine.
He painted the front door a bright green.
Rain fell on the roof all through the night.
The child drew a house with a red chimney.
We walked across the bridge to reach the town.
My sister plays the piano every Sunday morning.
The clock on the wall is ten minutes slow.
They built a long fence around the garden.
Please close the window before you go to bed.
The price of sugar went up again this week.
An old man sat alone near the river bank.
Fresh snow covered the road and the fields.
Put the wet coat on the chair to dry.
The teacher wrote a short poem on the board.
I found seventeen coins in the wooden box.
The ship sailed west with the morning tide.
Her new shoes were too tight to wear.
The soldier carried a flag up the hill.
Every student must bring a pencil and some paper.
The cat jumped over the low stone wall.
It takes about forty minutes to drive home.
The doctor asked him to rest for three days.
We heard a loud noise behind the kitchen door.""".splitlines()

NAMES = "John Mary Peter Anna David Sarah Tom Alice James Emma Robert Helen Jack Lucy Henry Kate George Laura Paul Susan".split()
PEOPLE = """man woman boy girl child teacher doctor farmer student soldier king queen friend neighbor brother sister mother
father uncle aunt baby driver baker cook nurse lawyer writer painter sailor guest visitor captain judge worker player singer
dancer hunter police officer clerk manager waiter tailor pilot thief prince stranger""".replace("police officer", "officer").split()
ANIMALS = "dog cat horse cow bird fish sheep goat pig mouse rabbit bear wolf fox lion tiger snake frog duck chicken eagle bee spider monkey elephant".split()
THINGS = """book letter table chair box bottle cup plate knife spoon clock watch lamp door window key bag coat hat shoe shirt
dress ring coin stone rope basket bread cake apple orange egg cheese soup tea coffee milk water sugar salt paper pencil pen
picture map radio phone camera computer machine engine car bus train boat ship plane bicycle truck wheel hammer nail ladder
bucket brush blanket pillow mirror candle flag drum piano violin ball kite toy gift card ticket newspaper story song poem
song question answer plan idea problem secret promise""".split()
PLACES = """house garden kitchen school church market river lake forest mountain hill beach road street bridge village town
city park station hotel hospital office shop store library museum farm field barn valley island harbor castle tower room
hall cellar yard corner""".split()
ADJ = """old new small big large little young tall short long heavy light dark bright red blue green yellow white black brown
warm cold hot cool dry wet clean dirty soft hard sharp smooth rough quiet loud slow quick strong weak rich poor happy sad
angry tired hungry thirsty brave clever kind gentle proud strange simple cheap broken empty full round flat narrow wide
deep beautiful ugly famous careful lazy busy honest wooden golden silver fresh sweet bitter""".split()
VT = """found bought sold lost carried opened closed broke fixed painted cleaned washed dropped took brought wanted needed liked
loved hated saw watched heard described remembered forgot kept hid gave sent showed left moved pushed pulled lifted burned
covered filled picked held threw caught stole borrowed made built drew wrote read ordered counted measured""".split()
VI = """slept laughed cried smiled waited worked walked ran jumped danced sang swam stood sat fell arrived stopped listened
talked whispered shouted stayed returned disappeared rested played""".split()
ADV = """slowly quickly quietly loudly carefully suddenly easily gently often never always sometimes yesterday today again
together alone early late finally already soon outside inside upstairs there here""".split()
PREP = "in on near behind beside under over across from to through around beyond inside outside toward".split()
TIME = """in the morning|in the evening|at night|last week|last year|next month|on Monday|on Tuesday|on Wednesday|on Thursday|on Friday
|on Saturday|on Sunday|in January|in February|in March|in April|in May|in June|in July|in August|in September|in October|in November
|in December|before dinner|after lunch|at noon|at midnight|all day|every day|this afternoon|in the spring|in the summer|in the winter|two hours ago""".replace("\n", "").split("|")
PRON = "I you he she we they it".split()
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def number(n):
    if n < 20:
        return ONES[n]
    if n == 100:
        return "one hundred"
    return TENS[n // 10 - 2] + (" " + ONES[n % 10] if n % 10 else "")


def sentence(r):
    c = r.choice
    def num():
        n = r.randint(0, 100)
        return str(n) if r.random() < 0.4 else number(n)
    def many():
        n = r.randint(2, 100)
        return str(n) if r.random() < 0.4 else number(n)
    def np_(thing):
        d = c(["the", "the", "the", "a", "my", "his", "her", "our", "their", "this", "that", "your"])
        a = c(ADJ) + " " if r.random() < 0.5 else ""
        w = a + thing
        if d == "a" and w[0] in "aeiou" and not w.startswith("use"):
            d = "an"
        return d + " " + w
    def plural(w):
        irregular = {"man": "men", "woman": "women", "child": "children", "mouse": "mice", "sheep": "sheep", "fish": "fish",
                     "knife": "knives", "wolf": "wolves", "thief": "thieves"}
        if w in irregular: return irregular[w]
        if w.endswith(("s", "x", "ch", "sh")): return w + "es"
        if w.endswith("y") and w[-2] not in "aeiou": return w[:-1] + "ies"
        return w + "s"
    def who():
        return c([c(NAMES), np_(c(PEOPLE)), np_(c(PEOPLE)), np_(c(ANIMALS)), c(["he", "she", "we", "they", "I", "you"])])
    def place():
        return c(PREP) + " the " + (c(ADJ) + " " if r.random() < 0.3 else "") + c(PLACES)
    k = r.randint(0, 17)
    if k <= 3: s = f"{who()} {c(VT)} {np_(c(THINGS))} {place()}"
    elif k == 4: s = f"{who()} {c(VI)} {place()} {c(TIME)}"
    elif k == 5: s = f"{who()} {c(VT)} {many()} {plural(c(THINGS + ANIMALS))}"
    elif k == 6: s = f"there are {many()} {plural(c(PEOPLE + ANIMALS + THINGS))} {place()}"
    elif k == 7: s = f"{c(['number', 'page', 'room', 'chapter', 'lesson', 'the answer is', 'the total is', 'the bus number is', 'turn to page'])} {num()}"
    elif k == 8: s = f"{np_(c(THINGS + PLACES + ANIMALS + PEOPLE))} {c(['is', 'was', 'looks', 'seems', 'became'])} {c(['very ', 'quite ', 'too ', ''])}{c(ADJ)} {c(['and ' + c(ADJ), c(TIME), 'now', ''])}"
    elif k == 9: s = f"{c(['do', 'did', 'can', 'will', 'would', 'could'])} {c(['you', 'they', 'we', 'he', 'she'])} {c(['see', 'find', 'bring', 'carry', 'open', 'buy', 'sell', 'fix', 'move', 'clean', 'remember', 'take', 'hold', 'give me', 'show me'])} {np_(c(THINGS))} {c(TIME)}?"
    elif k == 10: s = f"{c(['where', 'when', 'why', 'how'])} did {who()} {c(['go', 'find', 'leave', 'hide', 'lose', 'buy', 'make', 'see'])} {np_(c(THINGS))}?"
    elif k == 11: s = f"{c(['please', 'always', 'never', 'do not', 'you must', 'let us', 'try to', 'we should', 'I want to'])} {c(['open', 'close', 'bring', 'carry', 'move', 'clean', 'find', 'keep', 'hold', 'sell', 'count', 'paint', 'wash', 'take'])} {np_(c(THINGS))} {place()}"
    elif k == 12: s = f"{who()} {c(ADV)} {c(VI)}, and {who()} {c(VI)} {c(ADV)}"
    elif k == 13: s = f"{c(TIME)}, {who()} {c(VT)} {np_(c(THINGS))}"
    elif k == 14: s = f"{num()} {c(['plus', 'minus', 'times'])} {num()} {c(['is', 'makes', 'equals'])} {num()}"
    elif k == 15: s = f"it is {c(['exactly', 'about', 'almost', 'nearly'])} {num()} {c(['degrees', 'miles', 'minutes', 'dollars', 'years', 'hours', 'meters', 'pounds', 'percent'])} {c(['today', 'away', 'from here', 'now', c(TIME)])}"
    elif k == 16: s = f"{who()} said that {who()} {c(VT)} {np_(c(THINGS))}"
    else: s = f"when {who()} {c(VI)}, {who()} {c(VT)} {np_(c(THINGS + ANIMALS))}"
    s = re.sub(r"\s+", " ", s).strip().rstrip(",")
    s = s[0].upper() + s[1:]
    return s if s.endswith("?") else s + c(["."] * 8 + ["!"])


def wordnet(folder, dictionary, fewest=3, most=12, longest=62):
    """Usage examples of `fewest` to `most` words, all of them in the dictionary, in file order."""
    out = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in open(os.path.join(folder, "data." + part), encoding="latin-1"):
            for quote in re.findall(r'"([^"]+)"', line.partition("|")[2]):
                quote = quote.strip().rstrip(";,:").strip()
                if not re.fullmatch(r"[A-Za-z' ,?!.]+", quote):
                    continue
                body = quote.rstrip(".?!")
                if re.search(r"[.?!]", body) or "''" in body or " '" in body or "' " in body or ",," in body:
                    continue
                words = re.findall(r"[a-z']+", body.lower())
                if not fewest <= len(words) <= most or len(body) > longest or re.search(r"\b[A-Z]{2,}\b", body):
                    continue
                if dictionary and any(w not in dictionary for w in words):
                    continue
                end = quote[-1] if quote[-1] in "?!" else "."
                out.append(body[0].upper() + body[1:] + end)
    return out


def joined(r):
    """A sentence of 12 to 25 words made of two or three generated ones."""
    while True:
        parts = [sentence(r) for _ in range(r.choice([2, 2, 3]))]
        if any(p[-1] == "?" for p in parts):
            continue
        bodies = [p[:-1] for p in parts]
        low = [b if b.split()[0] in NAMES + ["I"] or b.split()[0].startswith("I'") else b[0].lower() + b[1:] for b in bodies[1:]]
        s = bodies[0]
        for b in low:
            s += r.choice([", and ", ", but ", " because ", " while ", ", so ", " before "]) + b
        if 12 <= len(s.split()) <= 25 and len(s) <= 140:
            return s + "."


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--wordnet", required=True, help="folder of WordNet's data files")
    p.add_argument("--dictionary", required=True, help="pronunciation list in CMU's form; sentences with other words are left out")
    p.add_argument("--generated", type=int, default=24000, help="short generated sentences, each in one voice")
    p.add_argument("--copies", type=int, default=2, help="voices that speak each short WordNet sentence")
    p.add_argument("--long", type=int, default=8000, help="sentences of 12 to 25 words, each in one voice")
    p.add_argument("--out", required=True, help="folder to write to")
    a = p.parse_args()
    r = random.Random(7)
    dictionary = {l.split()[0] for l in open(a.dictionary, encoding="utf-8") if l.strip()}
    norm = lambda s: re.sub(r"[^a-z0-9' ]", "", s.lower())
    wn = sorted(set(wordnet(a.wordnet, dictionary)))
    r.shuffle(wn)

    def draw(count, seen):
        gen = set()
        while len(gen) < count:
            s = sentence(r)
            if 3 <= len(s.split()) <= 13 and len(s) <= 66 and norm(s) not in seen:
                gen.add(s)
        gen = sorted(gen)
        r.shuffle(gen)
        return gen
    # the held-out choice depends on these first 9,000 alone, so that it stays the same whatever the amounts
    gen = draw(9000, set())
    held = HARVARD_STYLE + [s for s in gen if not re.search(r"\d", s)][:15] + [s for s in wn if 5 <= len(s.split()) <= 10][:15]
    gen += draw(max(0, a.generated - len(gen)), {norm(s) for s in gen})
    r = random.Random(8)
    long_wn = sorted(set(wordnet(a.wordnet, dictionary, 13, 25, 140)))
    r.shuffle(long_wn)
    long_gen = sorted({joined(r) for _ in range(max(0, a.long - len(long_wn)) + 20)})
    r.shuffle(long_gen)
    held_long = long_wn[:10] + [s for s in long_gen if not re.search(r"\d", s)][:10]
    banned = {norm(s) for s in held + held_long}
    lines = []
    for k, s in enumerate(wn):
        lines += [(s, v) for v in r.sample(range(4), a.copies)]
    lines += [(s, k % 4) for k, s in enumerate(gen)]
    lines += [(s, k % 4) for k, s in enumerate((long_wn[10:] + long_gen)[: a.long])]
    lines = [(s, v) for s, v in lines if norm(s) not in banned]
    r.shuffle(lines)
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "train.jsonl"), "w") as f:
        for i, (s, v) in enumerate(lines):
            f.write(json.dumps({"id": i, "text": s, "voice": v}) + "\n")
    for name, rows in (("heldout.txt", held), ("heldout-long.txt", held_long)):
        with open(os.path.join(a.out, name), "w") as f:
            f.write("\n".join(rows) + "\n")
    words = [w for s, _ in lines for w in norm(s).split()]
    print(len(wn), "short and", len(long_wn), "long from WordNet,", len(gen), "short and", len(long_gen), "long generated;", len(lines), "lines,",
          len(set(words)), "distinct words;", len(held), "and", len(held_long), "held out")


if __name__ == "__main__":
    main()
