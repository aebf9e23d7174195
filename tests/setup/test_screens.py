"""Every screen of the wizard on a dumb terminal: its text, its help, what it refuses (A1, F4, F5 of the test plan)."""
import pathlib

import pytest

VECTORS = pathlib.Path(__file__).parent.parent / "vectors" / "setup"

# What each screen asks: (prompt as it appears, answers that are refused with the reason, the answer).
STEPS = [
    ("name", [
        ("Name [hx170]: ", [("a b", "1 to 63 letters"), ("-x", "1 to 63 letters"), ("123", "at least one letter")],
         "box1"),
    ]),
    ("key", [
        ("Public key or path: ", [("", "at least one key"), ("hello", "no SSH public key"),
                                  ("-----BEGIN OPENSSH " + "PRIVATE KEY-----", "this is a private key"),
                                  ("/media/none", "No such file or directory"), ("@rsa2048", "too weak")], "@ed25519"),
        ("Another key: ", [], "@ed25519"),
        ("Another key: ", [], ""),
    ]),
    ("network", [
        ("Which [1]: ", [("4", "a number from 1 to 3"), ("x", "a number from 1 to 3")], "2"),
        ("Address: ", [("", "an address is needed"), ("192.168.1.5", "with its prefix"), ("192.168.1.0/24", "one machine"),
                       ("1.2.3.4/33", "with its prefix")], "192.168.1.5/24"),
        ("Router: ", [("192.168.2.1", "not in the network"), ("192.168.1.5", "address of this machine"),
                      ("router", "the router's address")], "192.168.1.1"),
        ("Name servers: ", [("dns.example", "addresses of name servers")], "192.168.1.1"),
        ("VLAN number [0]: ", [("4095", "from 0 to 4094"), ("-1", "from 0 to 4094")], ""),
        ("Proxy: ", [("proxy:1", "http://proxy.example"), ("http://a:b@c:1", "name or password")], ""),
    ]),
    ("time", [("Time source [default]: ", [("a,b", "names of time servers")], "")]),
    ("driver", [
        ("Bundle [none]: ", [("/media/none", "is not there"), ("bundle", "whole path"),
                             ("/media/bad", "the bundle is refused: nvidia.ko: SHA-256 differs")], "/media/good"),
        ("Do you accept this licence (yes or no) [no]: ", [("maybe", "yes or no")], "yes"),
    ]),
    ("hardware", [("Go on all the same (yes or no) [yes]: ", [], "")]),
    ("model", [
        ("Model [1]: ", [("2", "not enough room: the model needs 400.0 GiB")], "1"),
        ("Do you accept these licences (yes or no) [no]: ", [], "yes"),
        ("Where from [default]: ", [("ftp://x", "default, an address"), ("/media/none", "no folder here")],
         "http://192.168.1.9:8080/models"),
        ("Access token (may be empty): ", [("a b", "no spaces")], "tok_Geheim1234567"),
        ("Bytes per second at most [0]: ", [("fast", "a size")], "5M"),
        ("Time of day: ", [("22-6", "two different times")], "22:00-06:00"),
    ]),
    ("performance", [
        ("Watts per card [180]: ", [("110", "the cards take 120 to 240 W"), ("x", "an integer")], "200"),
        ("Layout [1]: ", [("9", "a number from 1 to 3")], "3"),
        ("Tokens of one conversation [262144]: ", [("10", "from 1024 to 1048576")], ""),
    ]),
    ("review", [("Put this in force (yes or no) [yes]: ", [("perhaps", "yes or no")], "")]),
    ("status", [("Press Enter to go on: ", [], "")]),
]


def answer_of(text):
    return (VECTORS / f"{text[1:]}.pub").read_text().strip() if text.startswith("@") else text


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
            for key in ("rsa2048", "ed25519"):  # echoed keys are longer than a line
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
    first = machine.start("--plain")
    first.expect("Name [hx170]: ")
    second = machine.run("hx-setup", "--plain")
    assert second.returncode == 69
    assert "another setup runs: process" in second.stderr
    first.send("q")
    assert first.wait() == 75


def test_terminal_signs_of_foreign_text(machine, key):
    """A key's comment with escape codes does not reach the terminal."""
    t = machine.start("--plain")
    t.expect("Name [hx170]: ")
    t.send("")
    t.expect("Public key or path: ")
    machine.put("media/keys", " ".join(key.split()[:2]) + " a\x1b[31mb\n")
    t.send("/media/keys")
    assert "\x1b" not in t.expect("Another key: ")


def test_install_screens(machine, screen, key):
    machine.put("proc/cmdline", "quiet hx170.mode=installer\n")
    t = machine.start("--plain")
    steps = [
        ("install-1", [("Keyboard [1]: ", [("99", "a number from 1 to")], ""),
                       ("Type some signs to test it, or nothing: ", [], "zyx")]),
        ("install-2", [("Check this stick (yes or no) [yes]: ", [], "")]),
        ("install-3", [("What to do [1]: ", [], "")]),
        ("install-4", [("Disk: ", [("3", "a number from 1 to 2"), ("", "a number from 1 to 2")], "1")]),
        ("install-5", [("Type the last four characters of its serial number: ",
                        [("9876", "not the end of this disk's serial number"), ("", "not the end")], "1234")]),
        ("install-7", [("Press Enter to go on: ", [], "")]),
    ]
    go_through(t, steps, screen)
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
