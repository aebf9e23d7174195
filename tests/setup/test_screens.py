"""Every screen of the wizard on a dumb terminal: its text, its help, what it refuses (A1, F4, F5 of the test plan)."""
import json

import pytest

from steps import BEFORE_MODEL, DRIVE_STEPS, INSTALL_STEPS, OTHER_STEPS, STEPS, VECTORS, answer_of


def go_through(t, steps, check=None, refuse=True):
    """Answers all questions; check(name, text) sees each screen with its refusals, as far as it was written by the
    program."""
    for name, questions in steps:
        text = ""
        for prompt, refused, answer in questions:
            text += t.expect(prompt) + "\n"
            if refuse:
                t.send("?")
                text += t.expect(prompt) + "\n"
                for wrong, why in refused:
                    t.send(answer_of(wrong))
                    part = t.expect(prompt)
                    assert why in " ".join(part.split()), (wrong, part)
                    text += part + "\n"
            t.send(answer_of(answer))
        if check:
            for key in ("rsa2048", "ed25519", "ecdsa256", "second"):  # echoed keys are longer than a line
                text = text.replace(answer_of(f"@{key}"), f"({key}.pub)")
            check(name, text)


def test_every_screen(machine, screen):
    """Each question: help, every refusal, an answer. The echo of the terminal is part of the screen."""
    t = machine.start("--plain")
    go_through(t, STEPS, screen)
    assert t.wait() == 0
    box = machine.box
    for line in ("hostname = box1", "network = static", "address = 192.168.1.5/24", "gateway = 192.168.1.1",
                 "driver_source = /media/good", "accept_driver_licence = NVIDIA-driver", "model = demo",
                 "model_source = http://192.168.1.9:8080/models", "bandwidth = 5M", "schedule = 22:00-06:00",
                 "power_cap_watts = 200", "layout = pp4"):
        assert line + "\n" in box
    assert box.count("admin_key") == 1  # the second was the same
    assert machine.get("var/lib/hx170/config/draft.conf") is None


def test_another_way(machine, screen):
    t = machine.start("--plain")
    go_through(t, OTHER_STEPS, screen)
    t.expect("Watts per card [180]: ")  # one back from the review
    t.send("q")
    assert t.wait() == 75
    assert machine.box is None and machine.get("var/lib/hx170/locks/own.json") is None


def test_back_from_the_lock_file(machine):
    """It leads to the list of models, not to the screen before."""
    t = machine.start("--plain")
    go_through(t, STEPS[:6], refuse=False)
    t.expect("Model [1]: ")
    t.send("4")
    t.expect("Lock file: ")
    t.send("b")
    t.expect("Model [1]: ")
    t.send("q")
    assert t.wait() == 75


def test_plain_lines_only(machine):
    """A1: TERM=dumb is enough; nothing but words in lines, and it is the whole wizard."""
    t = machine.start(term="dumb")
    go_through(t, STEPS)
    assert t.wait() == 0
    assert "hostname = box1\n" in machine.box
    wrote = t.seen
    for key in ("rsa2048", "ed25519"):  # echoes of the terminal
        wrote = wrote.replace(answer_of(f"@{key}"), "")
    assert all(sign == "\n" or " " <= sign <= "~" for sign in wrote)
    assert [line for line in wrote.split("\n") if len(line) > 80] == []


def test_token_is_not_shown(machine):
    t = machine.start("--plain")
    go_through(t, STEPS, refuse=False)
    assert t.wait() == 0
    assert "Geheim" not in t.seen
    assert "Geheim" not in machine.get("var/lib/hx170/setup.log")
    assert "Geheim" not in machine.box
    assert machine.get("var/lib/hx170/config/hub_token") == "tok_Geheim1234567"


@pytest.mark.parametrize("stop", range(len(STEPS) - 1))
def test_killed_at_each_screen(machine, stop):
    """A power cut while a screen waits: what was answered before is kept, the setup goes on at this screen."""
    t = machine.start("--plain")
    go_through(t, STEPS[:stop], refuse=False)
    t.expect(STEPS[stop][1][0][0])
    t.close()
    machine.terminals.remove(t)
    t = machine.start("--plain")
    assert f"Step {stop + 1} of {len(STEPS)}." in t.expect(STEPS[stop][1][0][0])
    t.send("q")
    assert t.wait() == 75
    assert machine.box is None
    if stop:
        assert "hostname = box1\n" in machine.get("var/lib/hx170/config/draft.conf")


def test_second_setup_is_told(machine):
    """Without a terminal, or for one step only, there is nothing to watch."""
    first = machine.start("--plain")
    first.expect("Name [hx170]: ")
    second = machine.run("hx-setup", "--plain")
    assert second.returncode == 69
    assert "another setup runs: process" in second.stderr
    third = machine.start("name")
    third.expect("another setup runs: process")
    assert third.wait() == 69
    first.send("q")
    assert first.wait() == 75


@pytest.mark.parametrize("term", ["dumb", "linux"])
def test_second_console_watches(machine, term):
    """It shows which screen is open at the other one, takes no answer, and is content with the result."""
    first = machine.start("--plain")
    first.expect("Name [hx170]: ")
    first.mark = 0
    second = machine.start(term=term)
    text = second.expect("There: Step 1 of 10. Device name\n")
    assert f"process {first.pid} on /dev/pts/" in text and "only shows how far it is" in text
    second.send("other-name")
    for number, step in enumerate(STEPS, 1):
        if number > 1:
            second.expect(f"There: Step {number} of 10. ")
        go_through(first, [step], refuse=False)
    assert first.wait() == 0
    second.expect("The setup on the other screen has ended.")
    assert second.wait() == 0
    assert "hostname = box1\n" in machine.box and "Step 1 of 10. Device name\n\n" not in second.seen


def test_second_console_goes_on(machine):
    """The first one is cut off: the second takes over at the screen that was open there."""
    first = machine.start("--plain")
    go_through(first, STEPS[:2], refuse=False)
    first.expect("Which [1]: ")
    second = machine.start("--plain")
    second.expect("There: Step 3 of 10. Network")
    first.close()
    machine.terminals.remove(first)
    assert "Step 3 of 10. Network" in second.expect("Which [1]: ")
    second.send("q")
    assert second.wait() == 75


@pytest.mark.parametrize("term", ["dumb", "vt220"])
def test_second_console_takes_over(machine, term):
    """Nobody sits at the first one: t brings the setup here, with the answers given so far."""
    first = machine.start(term=term)
    first.expect("Device name")
    first.keys(b"\r")
    first.expect("SSH keys")
    second = machine.start("--plain")
    second.expect("There: Step 2 of 10. SSH keys")
    second.send("x")
    second.send("t")
    assert "Step 2 of 10. SSH keys" in second.expect("Public key or path: ")
    assert first.wait() == 75
    assert "The setup goes on at another screen.\n" in first.seen
    second.send("b")
    second.expect("Name [hx170]: ")


def test_second_console_can_be_left(machine):
    first = machine.start("--plain")
    first.expect("Name [hx170]: ")
    second = machine.start("--plain")
    second.expect("There: Step 1 of 10.")
    second.send("q")
    assert second.wait() == 75
    first.send("box9")
    first.expect("Public key or path: ")


def test_terminal_signs_of_foreign_text(machine, key):
    """A key's comment with escape codes does not reach the terminal."""
    t = machine.start("--plain")
    t.expect("Name [hx170]: ")
    t.send("")
    t.expect("Public key or path: ")
    machine.put("media/keys", " ".join(key.split()[:2]) + " a\x1b[31mb\n")
    t.send("/media/keys")
    assert "\x1b" not in t.expect("Another key: ")


@pytest.mark.parametrize("rate,words", [(452000000, ["reads 0.45 GB/s", "That is slow: a model of 400 GB takes 15 minutes to load"]),
                                        (3410000000, ["reads 3.41 GB/s"])], ids=["slow", "fast"])
def test_speed_of_the_drive(machine, screen, rate, words):
    """H8: what the hardware report says about the drive of the models."""
    machine.add_commands([{"argv": ["hx-install", "speed", "--json", "--seconds", "8"], "rc": 0,
                           "stdout": json.dumps({"schema": 1, "bytes": rate * 8, "seconds": 8.0, "bytes_per_second": rate})}])
    t = machine.start("--plain", "hardware")
    text = t.expect("Go on all the same (yes or no) [yes]: ")
    for w in words:
        assert w in " ".join(text.split())
    assert ("slow" in text) == (rate < 1e9)
    screen("hardware-H8-slow-drive" if rate < 1e9 else "hardware-H8-fast-drive", text)


def test_drive_for_the_models(machine, screen):
    """The order is carried out once, and counts from the restart that follows."""
    machine.add_drives()
    t = machine.start("--plain")
    go_through(t, BEFORE_MODEL, refuse=False)
    go_through(t, [DRIVE_STEPS[0]], screen)
    t.expect("Step 8 of 10.")
    draft = machine.get("var/lib/hx170/config/draft.conf")
    assert "models_disk = S5GX9876\nerase_models_disk = S5GX9876\n" in draft
    go_through(t, DRIVE_STEPS[1:2], refuse=False)
    go_through(t, DRIVE_STEPS[2:], screen)
    assert t.wait() == 0
    assert "The models have another drive now: the machine starts again." in t.seen, t.seen[-500:]
    assert "models_disk = \n" in machine.box and "model = huge\n" in machine.box
    t = machine.start("--plain", "performance")  # later steps leave the drive alone
    go_through(t, [DRIVE_STEPS[1]], refuse=False)
    assert t.wait() == 0 and "starts again" not in t.seen


def test_drive_that_is_kept(machine):
    """What it holds stays; back from the list leads to the step before, back from a question to the list."""
    machine.add_drives()
    t = machine.start("--plain")
    go_through(t, BEFORE_MODEL, refuse=False)
    for answer, prompt in (("b", "Go on all the same"), ("", "Drive for the models [1]: "), ("2", "There are models"),
                           ("b", "Drive for the models [1]: "), ("3", "last four characters"), ("b", "Drive for the models [1]: "),
                           ("2", "There are models"), ("", "Model [1]: "), ("b", "Drive for the models [2]: "), ("1", "Model [1]: "),
                           ("2", "not enough room: the model needs 400.0 GiB"), ("b", "Drive for the models [1]: ")):
        if prompt.startswith("Go on"):
            t.expect("Drive for the models [1]: ")
        t.send(answer)
        t.expect(prompt)
    t.send("2")
    t.expect("There are models")
    t.send("1")
    go_through(t, [("", DRIVE_STEPS[0][1][3:])] + DRIVE_STEPS[1:], refuse=False)
    assert t.wait() == 0
    assert "model = huge\n" in machine.box and "the machine starts again" in t.seen


def test_drive_that_is_gone(machine):
    """The models had a drive of their own, which was pulled: the system's disk is offered."""
    own = {"name": "nvme0n1", "serial": "S5GX1234", "own": True, "current": False, "usable": True, "bytes": 1000204886016, "room": 960e9}
    rows = json.dumps([own])
    machine.add_commands([{"argv": ["hx-install", "drives", "--json"], "rc": 0, "stdout": rows},
                          {"argv": ["hx-install", "drives", "--json", "--seconds", "3"], "rc": 0, "stdout": rows},
                          {"argv": ["hx-install", "models", "--own"], "rc": 0, "stdout": ""},
                          {"argv": ["systemctl", "--no-block", "reboot"], "rc": 0, "stdout": ""}])
    t = machine.start("--plain")
    go_through(t, BEFORE_MODEL, refuse=False)
    go_through(t, [("", [("Drive for the models: ", [], "1"), ("Model [1]: ", [], "3")])] + DRIVE_STEPS[1:], refuse=False)
    assert t.wait() == 0
    assert "models_disk = \n" in machine.box and "the machine starts again" in t.seen


def test_drive_that_cannot_be_written(machine):
    """Nothing is in force then, and the setup says why."""
    machine.add_drives()
    t = machine.start("--plain")
    go_through(t, BEFORE_MODEL, refuse=False)
    go_through(t, [("", [("Drive for the models [1]: ", [], "3"), ("Type the last four characters of its serial number: ", [], "0007"),
                         ("Model [1]: ", [], "3")])] + DRIVE_STEPS[1:3], refuse=False)
    text = " ".join(t.expect("Press Enter to go on: ").split())
    assert "nothing was changed: Model and storage: hx-install: writing at offset 0 of /dev/sda: Input/output error" in text
    assert machine.box is None
    t.send("q")
    assert t.wait() == 75


def test_install_screens(machine, screen, key):
    machine.put("proc/cmdline", "quiet hx170.mode=installer\n")
    t = machine.start("--plain")
    go_through(t, INSTALL_STEPS, screen)
    assert t.wait() == 0


def test_install_failure_is_shown(machine):
    t = machine.start("--plain", "install")
    go_through(t, [("", [("Keyboard [1]: ", [], ""), ("Type some signs to test it, or nothing: ", [], ""),
                         ("Check this stick (yes or no) [yes]: ", [], ""), ("What to do [1]: ", [], "2"),
                         ("Disk: ", [], "1"), ("Type the last four characters of its serial number: ", [], "9876")])],
               refuse=False)
    assert "writing at offset 4096 of /dev/nvme1n1: Input/output error" in t.expect("Press Enter to go on: ")
    t.send("q")
    assert t.wait() == 75


def test_dialogs(machine):
    """The same questions as windows; F1 explains, Esc goes back."""
    t = machine.start(term="vt100")
    t.expect("Step 1 of 10. Device name")
    t.keys(b"\x1bOP")
    t.expect("Your router may show")
    t.keys(b"\r")
    t.keys(b"\x15box-d\r")
    t.expect("Step 2 of 10. SSH keys")
    t.keys(b"\r")
    t.expect("at least one key is needed")
    t.keys(b"\r")
    t.keys((VECTORS / "ed25519.pub").read_text().strip().encode() + b"\r")
    t.expect("1 key may log in")
    t.keys(b"\r")
    t.expect("Step 3 of 10. Network")
    t.keys(b"\t\t\t\r")  # list, OK, Back, Leave
    assert t.wait() == 75
    assert "hostname = box-d\n" in machine.get("var/lib/hx170/config/draft.conf")
