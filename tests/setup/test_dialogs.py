"""Every screen of the wizard as windows, painted by a terminal of 80 columns and 24 lines: question, help, each refusal."""
import pytest

from conftest import HERE
from steps import BEFORE_MODEL, DRIVE_STEPS, INSTALL_STEPS, OTHER_STEPS, STEPS, VECTORS, answer_of

CHOICES = ("Which [", "Model [", "Layout [", "Keyboard [", "What to do [", "Disk: ", "Drive for the models [", "There are models")
KILL_LINE, ENTER = b"\x15", b"\r"
KEYS = {"linux": {"f1": b"\x1b[[A", "up": b"\x1b[A", "down": b"\x1b[B"},
        "vt220": {"f1": b"\x1bOP", "up": b"\x1b[A", "down": b"\x1b[B"}}
MOST_ITEMS = 20


class Pictures:
    """The painted screens of one step in a file: a head line each, then the screen as it is."""

    def __init__(self, name, update):
        self.path = HERE / "screens" / "dialogs" / f"{name}.txt"
        self.update = update
        self.texts = {}
        if not update:
            for part in ("\n" + self.path.read_text()).split("\n=== ")[1:]:
                head, _, text = part.partition("\n")
                self.texts[head] = text.rstrip("\n")
        self.used = []

    def compare(self, t, head, wanted):
        """The terminal shows the screen. wanted: text that has to be in it in any case."""
        assert head not in self.used, head
        self.used.append(head)
        if self.update:
            t.settle(quiet=0.3)
            self.texts[head] = t.picture()
        elif head not in self.texts:
            pytest.fail(f"{self.path} has no screen '{head}'; tests/setup/run.sh BUILD --update writes it")
        same = t.shows(lambda picture: picture == self.texts[head])
        assert same, f"{self.path}: '{head}'; the terminal shows:\n{t.picture()}"
        assert wanted in plain(t.picture()), (head, wanted, t.picture())

    def close(self):
        if self.update:
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text("\n".join(f"=== {h}\n{self.texts[h]}\n" for h in self.used))
        assert list(self.texts) == self.used, f"{self.path} has screens that never came up"


def plain(picture):
    """The words of a screen, or of the note in front of it, without frames."""
    lines = picture.split("\n")
    for line in lines:
        if "┤ Note ├" in line:
            left, right = line.rindex("┌", 0, line.index("┤ Note ├")), line.index("┐", line.index("┤ Note ├"))
            lines = [other[left:right + 1] for other in lines]
            break
    return " ".join("".join(c if c.isascii() else " " for c in "\n".join(lines)).split())


def at_screen(t, number, total):
    assert t.shows(lambda picture: f"Step {number} of {total}." in plain(picture)), t.picture()


def to_answer(t):
    """A text that is too long for its window has the keys first: Tab leads to what is asked."""
    if "read on" in t.picture():
        t.keys(b"\t")
        t.settle()


def pick(t, keys, number):
    to_answer(t)
    t.keys(keys["up"] * MOST_ITEMS + keys["down"] * (number - 1) + ENTER)


def kind_of(prompt):
    if prompt.startswith(CHOICES):
        return "choice"
    return "confirm" if "(yes or no)" in prompt else "show" if prompt.startswith("Press Enter") else "text"


def type_line(t, text):
    to_answer(t)
    t.keys(KILL_LINE + answer_of(text).encode() + ENTER)


def reply(t, keys, prompt, text):
    """Gives an answer; an empty one to a question with a default stands for the default."""
    kind = kind_of(prompt)
    text = text or (prompt.rpartition("[")[2].partition("]")[0] if "[" in prompt else "")
    if kind == "choice":
        pick(t, keys, int(text))
    elif kind == "confirm":
        pick(t, keys, 1 if text == "yes" else 2)
    elif kind == "show":
        to_answer(t)
        t.keys(ENTER)
    else:
        type_line(t, text)


def possible(prompt, wrong):
    """Whether a wrong answer can be given in windows: a list has no other items than those it shows."""
    kind = kind_of(prompt)
    return kind == "text" or (kind == "choice" and wrong == "2" and prompt.startswith("Model"))


def words_of(prompt):
    return prompt.partition(" [")[0].rstrip(": ")


def question(t, term, pictures, at, prompt, refused, number, total):
    """A question, its help, and what it says to each wrong answer."""
    keys, words = KEYS[term], words_of(prompt)
    at_screen(t, number, total)
    pictures.compare(t, f"{at} {words}", "OK" if kind_of(prompt) == "show" else words)
    t.keys(keys["f1"])
    pictures.compare(t, f"{at} {words}: help", "Note")
    t.keys(ENTER)
    t.settle()
    for i, (wrong, why) in enumerate(refused, 1):
        if not possible(prompt, wrong):
            continue
        if kind_of(prompt) == "choice":
            pick(t, keys, int(wrong))
        else:
            type_line(t, wrong)
        pictures.compare(t, f"{at} {words}: refused {i}", why)
        t.keys(ENTER)
        t.settle()


def go_through(t, term, steps, numbers, total, update=None):
    """All answers. update None: nothing is compared."""
    for number, (name, questions) in zip(numbers, steps):
        pictures = None if update is None else Pictures(name, update)
        for at, (prompt, refused, answer) in enumerate(questions, 1):
            if pictures:
                question(t, term, pictures, at, prompt, refused, number, total)
            else:
                at_screen(t, number, total)
            reply(t, KEYS[term], prompt, answer)
        if pictures:
            pictures.close()


@pytest.fixture
def update(request):
    return request.config.getoption("--update")


@pytest.mark.parametrize("term", ["linux", "vt220"])
def test_every_screen(machine, update, term):
    """tty1 is a linux terminal, the serial line a vt220: both show the same."""
    t = machine.start(term=term)
    go_through(t, term, STEPS, range(1, 11), 10, update and term == "linux")
    assert t.wait() == 0
    box = machine.box
    for line in ("hostname = box1", "network = static", "address = 192.168.1.5/24", "gateway = 192.168.1.1",
                 "driver_source = /media/good", "accept_driver_licence = NVIDIA-driver", "model = demo",
                 "model_source = http://192.168.1.9:8080/models", "bandwidth = 5M", "schedule = 22:00-06:00",
                 "power_cap_watts = 200", "layout = pp4"):
        assert line + "\n" in box
    assert "Geheim" not in t.seen
    assert machine.get("var/lib/hx170/config/hub_token") == "tok_Geheim1234567"


def test_another_way(machine, update):
    t = machine.start(term="linux")
    go_through(t, "linux", OTHER_STEPS, range(1, 10), 10, update)
    at_screen(t, 8, 10)  # one back from the review
    assert machine.box is None and machine.get("var/lib/hx170/locks/own.json") is None


def test_drive_for_the_models(machine, update):
    machine.add_drives()
    t = machine.start(term="linux")
    go_through(t, "linux", BEFORE_MODEL, range(1, 7), 10)
    go_through(t, "linux", DRIVE_STEPS, range(7, 11), 10, update)
    assert t.wait() == 0
    assert "models_disk = \n" in machine.box and "model = huge\n" in machine.box


def test_install_screens(machine, update):
    machine.put("proc/cmdline", "quiet hx170.mode=installer\n")
    t = machine.start(term="linux")
    go_through(t, "linux", INSTALL_STEPS, (1, 2, 3, 4, 5, 7), 7, update)
    assert t.wait() == 0


@pytest.mark.parametrize("stop", range(9))
def test_killed_at_each_screen(machine, stop):
    """A power cut while a window waits: what was answered before is kept, the setup goes on at this window."""
    t = machine.start(term="linux")
    go_through(t, "linux", STEPS[:stop], range(1, 11), 10)
    at_screen(t, stop + 1, 10)
    t.close()
    machine.terminals.remove(t)
    assert machine.box is None
    t = machine.start(term="linux")
    at_screen(t, stop + 1, 10)
    go_through(t, "linux", STEPS[stop:], range(stop + 1, 11), 10)
    assert t.wait() == 0
    assert "hostname = box1\n" in machine.box and "power_cap_watts = 200\n" in machine.box


def to_keys(machine, term):
    t = machine.start(term=term)
    at_screen(t, 1, 10)
    t.keys(b"\x15box-d\r")
    at_screen(t, 2, 10)
    t.settle()
    return t


def sees(t, words):
    assert t.shows(lambda picture: words in plain(picture)), t.picture()


@pytest.mark.parametrize("term", ["linux", "vt220"])
@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", "\n\n"])
def test_pasted_keys(machine, term, end):
    """Several lines at once, however the terminal ends them: each is a key; the last is sent with Enter."""
    t = to_keys(machine, term)
    t.keys((answer_of("@ed25519") + end + answer_of("@ecdsa256") + end + answer_of("@second")).encode())
    sees(t, "2 keys may log in:")
    sees(t, answer_of("@second")[-30:])
    t.keys(ENTER)
    sees(t, "3 keys may log in:")
    to_answer(t)
    t.keys(ENTER)
    at_screen(t, 3, 10)


def test_pasted_line_that_is_no_key(machine):
    """It is refused and left to be mended; what came behind it is taken afterwards. Nothing of a paste goes to other
    questions."""
    t = to_keys(machine, "linux")
    t.keys((answer_of("@ed25519") + "\rhello\r" + answer_of("@ecdsa256") + "\r").encode())
    sees(t, "no SSH public key")
    t.keys(ENTER)
    sees(t, "1 key may log in:")
    sees(t, "hello")
    t.keys(KILL_LINE + answer_of("@second").encode() + ENTER)
    sees(t, "3 keys may log in:")
    t.keys(b"\x1b")
    at_screen(t, 1, 10)
    t.keys(b"\r")
    sees(t, "3 keys may log in:")


def test_back_and_leave(machine):
    """Esc on each window leads to the one before; Leave keeps the answers."""
    t = machine.start(term="linux")
    go_through(t, "linux", STEPS[:8], range(1, 11), 10)
    for number in range(9, 1, -1):
        at_screen(t, number, 10)
        t.keys(b"\x1b")
        at_screen(t, number - 1, 10)
    t.keys(b"\t\t\t\r")  # entry, OK, Back, Leave
    assert t.wait() == 75
    assert "hostname = box1\n" in machine.get("var/lib/hx170/config/draft.conf")
