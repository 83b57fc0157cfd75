"""The prompts whose answers train the head that ships for SmolLM2: subjects crossed with tasks, drawn from a seed.

    python examples/head/prompts.py 700 --seed 1 > prompts-1.jsonl      700 prompts; another seed, other prompts
    python examples/head/prompts.py 300 --seed 8 --short > prompts-8.jsonl                  questions with short answers
    python examples/head/prompts.py 300 --seed 9 --passages rows-1 > prompts-9.jsonl        with passages: the answers of a dataset

Every line holds `id`, `kind` and `prompt`. A head should meet the kinds of text that its model will write, so the kinds are many and the
wording of each varies.
"""

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

Writer = Callable[[random.Random], str]
Kinds = dict[str, list[Writer]]  # kind → writers of one prompt

SUBJECTS = """
tides; volcanoes; beekeeping; the water cycle; bread baking; chess openings; the Roman Empire; photosynthesis; electric cars; public
libraries; sleep; the stock market; vaccination; coral reefs; solar panels; jazz; the printing press; black holes; composting; marathon
training; the French Revolution; coffee; recycling; glaciers; earthquakes; bicycles; remote work; video games; the human heart; migration
of birds; whales; tea ceremonies; the Great Wall of China; cloud computing; encryption; machine learning; the periodic table; magnetism;
rainbows; thunderstorms; deserts; rivers; city parks; school lunches; museums; traffic jams; houseplants; dogs; cats; horses; ants;
spiders; dinosaurs; the Moon; Mars; comets; gravity; inflation; taxes; budgeting; credit cards; insurance; job interviews; time
management; friendship; grief; anger; public speaking; stage fright; swimming; climbing; yoga; football; tennis; sailing; camping;
fishing; gardening; woodworking; knitting; pottery; painting; photography; theatre; opera; cinema; novels; poetry; fairy tales; mythology;
the Vikings; ancient Egypt; the Silk Road; the Industrial Revolution; the moon landing; the Olympic Games; democracy; human rights; the
United Nations; elections; newspapers; advertising; supermarkets; farming; rice; potatoes; chocolate; cheese; spices; salt; sugar; olive
oil; wine; honey; breakfast; street food; restaurants; hotels; trains; airports; bridges; tunnels; skyscrapers; lighthouses; castles;
windmills; clocks; maps; compasses; telescopes; microscopes; antibiotics; blood pressure; allergies; the immune system; teeth; eyesight;
memory; dreams; language learning; handwriting; mathematics; statistics; probability; prime numbers; fractions; geometry; spreadsheets;
databases; operating systems; web browsers; search engines; robots; drones; batteries; nuclear power; wind energy; plastics; paper; glass;
steel; cotton; silk; fashion; shoes; jewellery; toys; birthdays; weddings; holidays; snow; autumn leaves; rainforests; mushrooms; orchids;
oak trees; penguins; elephants; sharks; frogs; butterflies; neighbours; grandparents; teenagers; teachers; nurses; firefighters; pilots
"""
PEOPLE = """
a ten-year-old; a busy manager; a beginner; a sceptical friend; a tourist; a university student; a grandmother; a new colleague; somebody
who is afraid of it; a journalist; a farmer; a class of teenagers
"""
PLACES = """
a small fishing village; a space station; a library at night; a crowded train; a mountain hut; an old factory; a school in the desert; a
bakery; a lighthouse; a hospital; a market; an island without a name
"""
HEROES = """
a shy inventor; two sisters; a talking crow; a retired sailor; a lost robot; a young queen; a clumsy wizard; a postman; a cook who cannot
taste; a detective; a girl with a map; a dog named Biscuit
"""
TONES = """
friendly; formal; funny; serious; short and direct; warm; persuasive; calm; enthusiastic; apologetic
"""
WORKS = """
a blog post; a speech; a letter to the editor; a newsletter; a travel guide; a school essay; a podcast introduction; a press release; a
product review; a diary entry
"""
LETTERS = """
asking the landlord to repair the heating; thanking a colleague for help with a project; declining an invitation to a wedding; asking for
a refund for a broken lamp; inviting neighbours to a summer party; applying for a part-time job in a bookshop; complaining about a late
parcel; asking a teacher for more time; congratulating a friend on a new baby; reminding a customer of an unpaid bill; cancelling a gym
membership; asking for a recommendation; announcing a change of the meeting room; apologising for a mistake in an invoice; introducing a
new member of the team; asking a doctor for an appointment; offering to walk a neighbour's dog
"""
CODE = """
reverse a string; count the words of a text; check whether a number is prime; find the largest value of a list; remove duplicates from a
list; merge two sorted lists; compute the factorial of a number; read a CSV file and print its columns; sort dictionaries by a key;
convert Celsius to Fahrenheit; check whether two words are anagrams; compute Fibonacci numbers; find the longest word of a sentence;
flatten a nested list; validate an e-mail address; count the vowels of a string; transpose a matrix; compute the mean and the median; make
a random password; rename all files of a folder; parse a date; group words by their first letter; draw a triangle of stars
"""
LANGUAGES = "Python; JavaScript; Java; C; Rust; Go; SQL; a shell script"
SENTENCES = {
    "German": """
Der Zug nach Hamburg hat heute zwanzig Minuten Verspätung.; Könnten Sie mir bitte sagen, wo die nächste Apotheke ist?; Meine Großmutter
backt jeden Sonntag einen Apfelkuchen.; Das Museum ist montags geschlossen, aber der Garten bleibt offen.; Wir haben gestern den ganzen
Tag im Wald Pilze gesucht.; Die Regierung will den Bau neuer Wohnungen fördern.; Er hat vergessen, das Fenster zu schließen.; Die
Wissenschaftler fanden im Eis Spuren eines alten Vulkans.
""",
    "French": """
Le marché ouvre à sept heures et ferme à midi.; Nous cherchons un appartement avec deux chambres près de la gare.; Elle a appris à nager
quand elle avait six ans.; Le prix du pain a encore augmenté cette année.; Pourriez-vous parler un peu plus lentement, s'il vous plaît ?;
Les enfants jouent dans le jardin malgré la pluie.; Il faut tourner à gauche après le pont.; Les chercheurs étudient le sommeil des
oiseaux.
""",
    "Spanish": """
La biblioteca cierra a las ocho de la tarde.; Mi hermano trabaja en un hospital cerca del mar.; ¿Cuánto cuesta el billete de ida y
vuelta?; Ayer llovió tanto que se inundó la calle.; Los agricultores esperan una buena cosecha este otoño.; No sé dónde he dejado las
llaves del coche.; El tren sale dentro de diez minutos.; Queremos aprender a cocinar platos sencillos.
""",
}
# Parts of a German sentence: who, does what, when or why.
GERMAN_WHO = """
Die Regierung; Der Bürgermeister; Eine junge Ärztin; Der Verein; Die Polizei; Das Unternehmen; Ein Sprecher des Ministeriums; Die Stadt;
Mein Nachbar; Die Trainerin; Der Richter; Die Bank; Ein Forscherteam aus Kiel; Die Gewerkschaft; Der Hersteller; Die Universität; Das
Gericht; Der Koch; Die Fluggesellschaft; Ein Tourist
"""
GERMAN_DOES = """
hat die neuen Pläne vorgestellt; will die Preise nicht weiter erhöhen; sucht dringend nach freiwilligen Helfern; konnte den Fehler
erst spät erkennen; verkauft das alte Haus am Fluss; lehnt den Vorschlag der Nachbarländer ab; rechnet mit deutlich mehr Besuchern; hat
den Vertrag um zwei Jahre verlängert; warnt vor starkem Regen und Überschwemmungen; veröffentlicht morgen einen ausführlichen Bericht;
musste das Spiel kurz nach der Pause unterbrechen; plant eine Ausstellung über das Leben auf dem Land; spendet einen Teil der Einnahmen
für Schulen; hat einen seltenen Vogel fotografiert; bestreitet alle Vorwürfe; stellt im Herbst hundert neue Mitarbeiter ein
"""
GERMAN_WHEN = """
nachdem die Zahlen bekannt geworden waren; obwohl viele Bürger dagegen sind; weil im Winter das Geld fehlte; wie die Zeitung am Dienstag
meldete; um die Straßen sicherer zu machen; während das Parlament noch berät; ohne die Eltern vorher zu fragen; bevor die Ferien beginnen;
so dass der Verkehr stundenlang stillstand; was niemand erwartet hatte; solange die Lieferungen ausbleiben; damit die Kinder besser lernen
können
"""
THINGS_MADE = """
the telephone; the steam engine; the bicycle; the microscope; penicillin; the theory of relativity; the World Wide Web; dynamite; the
light bulb; the piano; the novel Pride and Prejudice; the play Hamlet; the Sistine Chapel ceiling; the Eiffel Tower; the Taj Mahal; the
Colosseum; the Suez Canal; the Statue of Liberty; the United Nations; the Red Cross; the first Olympic Games of modern times; the
parachute; the typewriter; blue jeans; the sandwich; the crossword puzzle; the escalator; the vacuum cleaner; radio; television; the song
Yesterday; the film Casablanca; the series Star Trek; the game of basketball; Wikipedia
"""
SITES = """
the Great Barrier Reef; Mount Kilimanjaro; the Danube; Lake Titicaca; the Sahara; Machu Picchu; the Black Forest; the Panama Canal; Petra;
the Grand Canyon; Angkor Wat; the Dead Sea; Easter Island; the Amazon; the Bermuda Triangle; the Acropolis; the Alhambra; Stonehenge; the
Niagara Falls; the Strait of Gibraltar; the Hermitage Museum; Silicon Valley; the Zambezi; Mount Fuji; the Gobi
"""
QUESTIONS = """
What is the most important point?; Which numbers or dates are mentioned?; Who is this about?; Why does it matter?; What happens first?;
What would the author advise?; Which example is given?; What is not explained?; How does it end?; Where does it take place?; What are the
advantages that are named?; What should the reader do next?
"""
FACTS = """
the capital of Norway; the author of Don Quixote; the longest river of Africa; the year in which the Berlin Wall fell; the chemical symbol
of gold; the inventor of the telephone; the largest ocean; the number of bones in an adult body; the painter of the Mona Lisa; the speed
of light; the currency of Japan; the planet with the most moons; the first person on the Moon; the boiling point of water; the tallest
mountain; the language of Brazil; the composer of the Ninth Symphony; the smallest country; the gas that plants take in; the hardest
mineral; the country with the most people; the author of Frankenstein; the organ that makes insulin; the sea between Europe and Africa;
the meaning of DNA; the founder of Rome in the legend; the distance from the Earth to the Sun; the colours of the flag of Italy; the
number of players in a football team; the deepest point of the sea
"""


def choices(text: str) -> list[str]:
    """The items of a list like those above."""
    return [" ".join(item.split()) for item in text.split(";") if item.strip()]


def sums(rng: random.Random) -> str:
    """A word problem with fresh numbers."""
    a, b, c = rng.randrange(3, 40), rng.randrange(2, 25), rng.randrange(2, 12)
    name, thing = (
        rng.choice(["Ana", "Tom", "Mira", "Luis", "Kofi", "Yuki", "Sara", "Emil"]),
        rng.choice(["apples", "stamps", "books", "coins", "eggs", "tickets"]),
    )
    return rng.choice(
        [
            f"{name} has {a * c} {thing} and gives {b} to a friend, then packs the rest into boxes of {c}. How many full boxes are there, "
            f"and how many {thing} are left?",
            f"A shop sells {thing} for {b} dollars each. {name} buys {c} and pays with {b * c + a} dollars. "
            f"How much change does {name} get?",
            f"A train travels {a * 10} kilometres in {c} hours. What is its average speed, and how far does it get in {b} hours?",
            f"{name} reads {b} pages a day. How many days does a book of {a * b + c} pages take? Show your steps.",
            f"Solve for x: {c}x + {b} = {c * a + b}. Explain each step.",
            f"A rectangle is {a} cm long and {b} cm wide. Find its perimeter and its area.",
            f"{name} saves {b} dollars each week and already has {a}. After how many weeks does {name} have {a + b * c} dollars?",
            f"What is {a} percent of {b * 20}? Show how you get there.",
        ]
    )


def tales(rng: random.Random) -> str:
    """A longer word problem with fresh numbers."""
    a, b, c = rng.randrange(3, 40), rng.randrange(2, 25), rng.randrange(2, 12)
    name, other = rng.sample(["Ana", "Tom", "Mira", "Luis", "Kofi", "Yuki", "Sara", "Emil", "Nora", "Ivan", "Leila", "Paul"], 2)
    thing = rng.choice(["apples", "stamps", "books", "coins", "eggs", "tickets", "marbles", "cookies", "pencils", "flowers"])
    return rng.choice(
        [
            f"{name} has {c} times as many {thing} as {other}. {other} has {a}. How many {thing} do they have together?",
            f"{name} works {c} hours a day for {b} dollars an hour. In a week of 5 days {name} spends {a} dollars on food. "
            "How much money is left at the end of the week?",
            f"On Monday {name} sold {a} {thing}. On Tuesday {name} sold {b} more than on Monday, and on Wednesday half as many as on "
            f"Monday and Tuesday together. How many {thing} were sold on the three days?",
            f"{other} is {b} years older than {name}. In {c} years {other} will be {a + b + c}. How old is {name} now?",
            f"A recipe for {c} people needs {b * c} {rng.choice(['grams of butter', 'grams of rice', 'strawberries', 'nuts'])}. "
            f"How much is needed for {c + a} people?",
            f"A tank holds {a * 20} litres. It loses {b} litres an hour through a leak and gains {b + c} litres an hour from a pipe. "
            "It is empty now. How long until it is full?",
            f"{name} bakes {a * 2} {rng.choice(['muffins', 'pies', 'rolls'])}, eats {c} of them, and sells the others for {b} dollars "
            f"each. The ingredients cost {a} dollars. What is the profit?",
        ]
    )


def german(rng: random.Random) -> str:
    """A German sentence of two or three parts."""
    who, does, when = (pick(rng, parts) for parts in (GERMAN_WHO, GERMAN_DOES, GERMAN_WHEN))
    return f"{who} {does}, {when}." if rng.random() < 0.7 else f"{who} {does}."


def pick(rng: random.Random, text: str) -> str:
    """An item of a list like those above."""
    return rng.choice(choices(text))


def subject(rng: random.Random) -> str:
    """Anything to talk about."""
    return pick(rng, SUBJECTS)


def sentence(rng: random.Random) -> tuple[str, str]:
    """A language and a sentence in it."""
    language = rng.choice(list(SENTENCES))
    return language, pick(rng, SENTENCES[language])


def general_kinds() -> Kinds:
    """Explanations, stories, letters, code and what else people ask."""
    return {
        "explain": [
            lambda r: f"Explain {subject(r)} to {pick(r, PEOPLE)}.",
            lambda r: f"What should everybody know about {subject(r)}?",
            lambda r: f"How does one get started with {subject(r)}?",
            lambda r: f"Why does {subject(r)} matter? Give three reasons.",
            lambda r: f"What are common mistakes that people make about {subject(r)}?",
            lambda r: f"Describe the history of {subject(r)} in two paragraphs.",
            lambda r: f"Compare {subject(r)} and {subject(r)}. What do they have in common?",
        ],
        "fact": [
            lambda r: f"What is {pick(r, FACTS)}?",
            lambda r: f"Tell me {pick(r, FACTS)} and one interesting detail about it.",
            lambda r: f"Is it easy to remember {pick(r, FACTS)}? State it and give a mnemonic.",
        ],
        "list": [
            lambda r: f"List {r.randrange(3, 9)} facts about {subject(r)}.",
            lambda r: f"Give me {r.randrange(3, 8)} ideas for a talk about {subject(r)}.",
            lambda r: f"Name {r.randrange(3, 7)} advantages and {r.randrange(2, 5)} drawbacks of {subject(r)}.",
            lambda r: f"Write {r.randrange(3, 7)} quiz questions about {subject(r)} with their answers.",
        ],
        "how-to": [
            lambda r: f"Write step-by-step instructions for a workshop on {subject(r)}.",
            lambda r: f"Plan a one-day visit for {pick(r, PEOPLE)} who is interested in {subject(r)}.",
            lambda r: f"How can I teach {subject(r)} to {pick(r, PEOPLE)}?",
            lambda r: f"Make a weekly plan for learning about {subject(r)}.",
        ],
        "story": [
            lambda r: f"Write a short story about {pick(r, HEROES)} in {pick(r, PLACES)}.",
            lambda r: f"Begin a story with {pick(r, HEROES)} who knows nothing about {subject(r)}.",
            lambda r: f"Write a dialogue between {pick(r, HEROES)} and {pick(r, HEROES)} about {subject(r)}.",
            lambda r: f"Describe {pick(r, PLACES)} in the early morning.",
        ],
        "poem": [lambda r: f"Write a poem about {subject(r)}.", lambda r: f"Write a song about {subject(r)} with a chorus."],
        "writing": [
            lambda r: f"Write {pick(r, WORKS)} about {subject(r)} in a {pick(r, TONES)} tone.",
            lambda r: f"Write an introduction and a conclusion for an essay on {subject(r)}.",
            lambda r: f"Write a product description for something that has to do with {subject(r)}.",
            lambda r: f"Argue for or against {subject(r)} in a debate.",
        ],
        "letter": [
            lambda r: f"Write a {pick(r, TONES)} e-mail {pick(r, LETTERS)}.",
            lambda r: f"Draft a letter {pick(r, LETTERS)}. Keep it {pick(r, TONES)}.",
        ],
        "mathematics": [sums],
        "code": [
            lambda r: f"Write a function in {pick(r, LANGUAGES)} to {pick(r, CODE)}.",
            lambda r: f"Show how to {pick(r, CODE)} in Python and explain the code.",
            lambda r: (
                "What is the difference between a "
                f"{r.choice(['list', 'class', 'loop', 'thread', 'pointer', 'set'])} and a "
                f"{r.choice(['tuple', 'function', 'recursion', 'process', 'reference', 'dictionary'])}?"
            ),
        ],
        "translation": [
            lambda r: "Translate this {} sentence to English: {}".format(*sentence(r)),
            lambda r: "What does this mean in English? ({}) {}".format(*sentence(r)),
            lambda r: f"Translate to {r.choice(list(SENTENCES))}: I would like to learn more about {subject(r)}.",
        ],
        "role": [
            lambda r: f"You are a guide at an exhibition about {subject(r)}. Welcome your visitors.",
            lambda r: f"Pretend that you are {pick(r, HEROES)}. What do you think about {subject(r)}?",
            lambda r: f"Interview an expert on {subject(r)}: three questions and the answers.",
        ],
        "opinion": [
            lambda r: f"Should schools teach more about {subject(r)}? Take a position.",
            lambda r: f"Is {subject(r)} overrated? Answer in a {pick(r, TONES)} way.",
        ],
    }


def short_kinds() -> Kinds:
    """Questions with short answers: facts, sentences to translate, word problems."""
    return {
        "question": [
            lambda r: f"Who {r.choice(['invented', 'made', 'came up with'])} {pick(r, THINGS_MADE)}?",
            lambda r: f"When and where did {pick(r, THINGS_MADE)} first appear?",
            lambda r: f"Where is {pick(r, SITES)}?",
            lambda r: f"How old is {pick(r, SITES)}, and why is it famous?",
            lambda r: f"Where does the word for {subject(r)} come from?",
            lambda r: f"Who was the first to study {subject(r)}?",
        ],
        "translation": [lambda r: f"Translate German to English: {german(r)}", lambda r: f"What is this in English? {german(r)}"],
        "mathematics": [tales, sums],
    }


def passage_kinds(passages: list[str]) -> Kinds:
    """Texts to summarize, rewrite and read."""

    def quoted(start: str) -> Writer:
        return lambda rng: f"{start}\n\n{rng.choice(passages)}"

    return {
        "summary": [
            quoted("Summarize:"),
            quoted("Summarize this text in two sentences:"),
            quoted("What is the main idea of the following passage?"),
            quoted("Write a headline and a summary for this:"),
        ],
        "rewriting": [
            quoted("Rewrite this in simpler words:"),
            quoted("Correct and improve this text:"),
            quoted("Rewrite this in a formal tone:"),
        ],
        "reading": [
            quoted("Answer from the passage: what is it about, and who would want to read it?"),
            quoted("Write three questions about this text and answer them:"),
            lambda r: f"{r.choice(passages)}\n\nUsing the text above, answer the question: {pick(r, QUESTIONS)}",
            lambda r: f"{r.choice(passages)}\n\n{r.choice(passages)}\n\n{pick(r, QUESTIONS)}",
        ],
        "extraction": [quoted("List the key words of this text:"), quoted("Turn this text into bullet points:")],
    }


def main() -> None:
    """Print prompts."""
    parser = argparse.ArgumentParser(description="Write prompts as JSON lines.")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="questions with short answers: facts, translations, word problems")
    parser.add_argument("--passages", type=Path, help="a dataset whose answers are to be summarized, rewritten and read")
    words = parser.parse_args()
    kinds = short_kinds() if words.short else general_kinds()
    if words.passages:
        from pyarrow.dataset import dataset

        answers = dataset(words.passages / "data").to_table(columns=["completion"])["completion"].to_pylist()
        kinds = passage_kinds([text[:900].rsplit(".", 1)[0] + "." for text in answers if text and text.count(".") > 2])
    rng = random.Random(words.seed)
    seen: set[str] = set()
    while len(seen) < words.count:
        kind = rng.choice(list(kinds))
        prompt = rng.choice(kinds[kind])(rng)
        if prompt not in seen:
            seen.add(prompt)
            print(json.dumps({"id": f"head-{words.seed}-{len(seen):04d}", "kind": kind, "prompt": prompt}, ensure_ascii=False))


if __name__ == "__main__":
    main()
