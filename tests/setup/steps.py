"""What the wizard asks, for both faces."""
import pathlib

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

# Another way through: keys from the web, DHCP, a bundle that does not build, a lock file of the owner's own. It ends with
# what could not be put in force.
OTHER_STEPS = [
    ("other-name", [("Name [hx170]: ", [], "")]),
    ("other-key", [
        ("Public key or path: ", [("https://keys.example/nobody", "no keys from there"), ("https://keys.example/page", "no SSH public key")], "https://keys.example/me.keys"),
        ("Another key: ", [], "clear"),
        ("Public key or path: ", [], "@ecdsa256"),
        ("Another key: ", [], "@second"),
        ("Another key: ", [], ""),
    ]),
    ("other-network", [
        ("Which [1]: ", [], "1"),
        ("Name servers: ", [], ""),
        ("VLAN number [0]: ", [], "12"),
        ("Proxy: ", [], "http://proxy.example:3128"),
    ]),
    ("other-time", [("Time source [default]: ", [("a b c d e", "up to 4 names")], "ntp1.example ntp2.example")]),
    ("other-driver", [("Bundle [none]: ", [], "/media/breaks")]),
    ("other-hardware", [("Go on all the same (yes or no) [yes]: ", [], "")]),
    ("other-model", [
        ("Model [1]: ", [], "4"),
        ("Lock file: ", [("/media/none", "is not there"), ("own.json", "whole path")], "/media/own.json"),
        ("Is this the right one (yes or no) [no]: ", [], "yes"),
        ("Do you accept these licences (yes or no) [no]: ", [], "yes"),
        ("Where from [default]: ", [], "/media/models"),
        ("Access token (may be empty): ", [], ""),
        ("Bytes per second at most [0]: ", [], ""),
        ("Time of day: ", [], ""),
    ]),
    ("other-performance", [
        ("Watts per card [180]: ", [], ""),
        ("Layout [1]: ", [], ""),
        ("Tokens of one conversation [262144]: ", [], ""),
    ]),
    ("other-review", [("Put this in force (yes or no) [yes]: ", [], ""), ("Press Enter to go on: ", [], "")]),
]

# Without a driver bundle, up to the model.
BEFORE_MODEL = STEPS[:4] + [("driver", [("Bundle [none]: ", [], "")])] + STEPS[5:6]

# A box with more than one drive: the model goes to the second one, which is erased.
DRIVE_STEPS = [
    ("drive-model", [
        ("Drive for the models [1]: ", [("4", "a number from 1 to 3")], "2"),
        ("There are models on this drive [1]: ", [], "2"),
        ("Type the last four characters of its serial number: ", [("1234", "not the end of this drive's serial number")], "9876"),
        ("Model [1]: ", [], "2"),
        ("Do you accept these licences (yes or no) [no]: ", [], "yes"),
        ("Where from [default]: ", [], ""),
        ("Access token (may be empty): ", [], ""),
        ("Bytes per second at most [0]: ", [], ""),
        ("Time of day: ", [], ""),
    ]),
    ("drive-performance", [
        ("Watts per card [180]: ", [], ""),
        ("Layout [1]: ", [], ""),
        ("Tokens of one conversation [262144]: ", [], ""),
    ]),
    ("drive-review", [("Put this in force (yes or no) [yes]: ", [], "")]),
    ("drive-status", [("Press Enter to go on: ", [], "")]),
]

# The same from the stick.
INSTALL_STEPS = [
    ("install-1", [("Keyboard [1]: ", [("99", "a number from 1 to")], ""),
                   ("Type some signs to test it, or nothing: ", [], "zyx")]),
    ("install-2", [("Check this stick (yes or no) [yes]: ", [], "")]),
    ("install-3", [("What to do [1]: ", [], "")]),
    ("install-4", [("Disk: ", [("3", "a number from 1 to 2"), ("", "a number from 1 to 2")], "1")]),
    ("install-5", [("Type the last four characters of its serial number: ",
                    [("9876", "not the end of this disk's serial number"), ("", "not the end")], "1234")]),
    ("install-7", [("Press Enter to go on: ", [], "")]),
]


def answer_of(text):
    return (VECTORS / f"{text[1:]}.pub").read_text().strip() if text.startswith("@") else text
