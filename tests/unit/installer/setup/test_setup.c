/* The wizard as a whole, over a machine in a folder: answers by file and by lines, leaving and
 * going on at every question, what comes into force and what does not. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "setup/checks.h"
#include "setup/lock.h"
#include "setup/setup.h"

#define COMMANDS   "tests/vectors/setup/commands.json"
#define OWN_TEXT   "own lock\n"
#define OWN_SHA256 "4f7e3fcb91b4fc31c5601798cbe6f7456c53288d1bcd6aa5dbe26af8465fbb28"

static char root[64];

static void put(const char *path, const char *text)
{
    struct hx_setup s = {.root_dir = root};
    struct hx_error err;
    assert_int_equal(hx_setup_put(&s, path, text, strlen(text), 0644, &err), 0);
}

static char *get(const char *path)
{
    char at[256], *text = NULL;
    size_t n;
    struct hx_error err;
    snprintf(at, sizeof(at), "%s%s", root, path);
    return hx_file_read(at, 1 << 20, &text, &n, &err) == 0 ? text : NULL;
}

static bool there(const char *path)
{
    char *text = get(path);
    free(text);
    return text != NULL;
}

static void holds(const char *path, const char *want)
{
    char *text = get(path);
    if (!text)
        fail_msg("%s is not there", path);
    if (!strstr(text, want))
        fail_msg("%s lacks '%s':\n%s", path, want, text);
    free(text);
}

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/hx-setup-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    put("/usr/share/hx170/locks/demo.json", "{}");
    put("/usr/share/hx170/locks/huge.json", "{}");
    put("/media/good", "x");
    put("/media/bad", "x");
    put("/media/breaks", "x");
    put("/media/models/x", "x");
    put("/media/own.json", OWN_TEXT);
    return 0;
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    return nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}

static char *key_text(const char *name)
{
    char path[100], *text;
    size_t n;
    struct hx_error err;
    snprintf(path, sizeof(path), "tests/vectors/setup/%s", name);
    assert_int_equal(hx_file_read(path, 1 << 16, &text, &n, &err), 0);
    text[strcspn(text, "\n")] = '\0';
    return text;
}

/* ---- by file --------------------------------------------------------------------------------- */

static enum hx_ui_reply by_file(const char *text, struct hx_error *err)
{
    struct hx_setup s;
    struct hx_box answers;
    assert_int_equal(hx_box_parse(text, strlen(text), "f", HX_BOX_ANSWERS, &answers, err), 0);
    assert_int_equal(hx_setup_open(&s, root, COMMANDS, err), 0);
    assert_int_equal(hx_ui_script_open(&answers, NULL, &s.ui, err), 0);
    s.scripted = true;
    enum hx_ui_reply reply = hx_setup_run(&s, NULL, err);
    hx_ui_close(s.ui);
    hx_setup_close(&s);
    hx_box_done(&answers);
    return reply;
}

/* Every key of the file arrives in box.conf, and in the files of the programs. */
static void test_answers_file(void **state)
{
    char *text = key_text("answers.conf"), *whole, *box;
    struct hx_error err;
    size_t n;
    (void)state;
    free(text);
    assert_int_equal(hx_file_read("tests/vectors/setup/answers.conf", 1 << 16, &whole, &n, &err),
                     0);
    if (by_file(whole, &err) != HX_UI_NEXT)
        fail_msg("%s", err.text);
    box = get(HX_SETUP_BOX);
    assert_non_null(box);
    char *rest = whole;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (*line == '\0' || *line == '#' || strncmp(line, "bandwidth", 9) == 0)
            continue;
        if (!strstr(box, line))
            fail_msg("box.conf lacks '%s'", line);
    }
    assert_non_null(strstr(box, "bandwidth = 5M\n"));
    assert_false(there(HX_SETUP_DRAFT));
    holds("/run/hx170/hostname", "box-7\n");
    holds("/run/hx170/ssh/authorized_keys", "ssh-rsa ");
    holds("/run/hx170/environment", "https_proxy=http://proxy.example:3128\n");
    holds("/run/hx170/fetch.conf.d/50-box.conf", "lock = /usr/share/hx170/locks/demo.json\n");
    holds("/run/hx170/fetch.conf.d/50-box.conf", "accept_licences = yes\n");
    holds("/run/hx170/fetch.conf.d/50-box.conf",
          "endpoints = mirror=plain:http://192.168.1.9:8080/models\n");
    holds("/run/hx170/fetch.conf.d/50-box.conf", "window = 22:00-06:00\n");
    holds("/run/hx170/engine.conf.d/50-box.conf", "max_context = 65536\n");
    holds("/run/hx170/cards.conf.d/50-box.conf", "power_cap = 200\n");
    holds("/run/systemd/network/10-hx170.network", "VLAN=hxvlan\n");
    holds("/run/systemd/network/10-hx170-vlan.netdev", "Id=7\n");
    holds("/run/systemd/network/11-hx170-vlan.network", "Gateway=192.168.1.1\n");
    holds("/run/systemd/timesyncd.conf.d/50-hx170.conf", "NTP=ntp.example 192.168.1.1\n");
    free(box);
    free(whole);
}

static void refused(const char *lines, const char *want)
{
    char text[2000], *key = key_text("ed25519.pub");
    struct hx_error err = {0};
    snprintf(text, sizeof(text), "schema = 1\nadmin_key = %s\n%s", key, lines);
    free(key);
    assert_int_equal(by_file(text, &err), HX_UI_ERROR);
    if (!strstr(err.text, want))
        fail_msg("expected '%s', got '%s'", want, err.text);
    assert_false(there(HX_SETUP_BOX)); /* no partial apply */
    assert_false(there("/run/hx170/hostname"));
}

static void test_answers_that_do_not_work_here(void **state)
{
    (void)state;
    refused("model = unknown\n", "model: 'unknown' is not on offer here");
    refused("model = huge\naccept_model_licence = yes\n",
            "model: not enough room: the model needs");
    refused("model = demo\n", "accept_model_licence");
    refused("model = demo\naccept_model_licence = yes\nmodel_source = /media/none\n",
            "model_source: /media/none is no folder here");
    refused("driver_source = /media/none\n", "driver_source: /media/none is not there");
    refused("driver_source = /media/bad\n", "the bundle is refused: nvidia.ko: SHA-256 differs");
    refused("driver_source = /media/good\n", "the bundle's licence 'NVIDIA-driver' is not named");
    refused("driver_source = /media/breaks\n", "the build ended with status 2");
    refused("power_cap_watts = 110\n", "power_cap_watts: the cards take 120 to 240 W");
    refused("token_file = /media/models/none\nmodel = demo\naccept_model_licence = yes\n",
            "token_file: ");
}

static void own_lock_in_force(void)
{
    holds("/var/lib/hx170/locks/own.json", OWN_TEXT);
    holds(HX_SETUP_BOX, "model_lock = \n");
    holds(HX_SETUP_BOX, "model_lock_sha256 = " OWN_SHA256 "\n");
    holds("/run/hx170/fetch.conf.d/50-box.conf", "lock = /var/lib/hx170/locks/own.json\n");
    holds("/run/hx170/fetch.conf.d/50-box.conf", "accept_lock = " OWN_SHA256 "\n");
}

/* A lock file of the owner's own is taken over with his consent to its hash, and only so. */
static void test_own_lock(void **state)
{
    char text[1000], *key = key_text("ed25519.pub");
    struct hx_error err;
    (void)state;
    refused("model = own\naccept_model_licence = yes\nmodel_lock = /media/none\n"
            "model_lock_sha256 = " OWN_SHA256 "\n",
            "model_lock: /media/none is not there");
    put("/media/other.json", OWN_TEXT "x");
    refused("model = own\naccept_model_licence = yes\nmodel_lock = /media/other.json\n"
            "model_lock_sha256 = " OWN_SHA256 "\n",
            "model_lock: ");
    refused("model = another\naccept_model_licence = yes\nmodel_lock = /media/own.json\n"
            "model_lock_sha256 = " OWN_SHA256 "\n",
            "is for the model 'own', not 'another'");
    refused("model = own\naccept_model_licence = yes\nmodel_lock_sha256 = " OWN_SHA256 "\n",
            "model_lock: missing");
    snprintf(text, sizeof(text),
             "schema = 1\nadmin_key = %s\nmodel = own\naccept_model_licence = yes\n"
             "model_lock = /media/own.json\nmodel_lock_sha256 = " OWN_SHA256 "\n",
             key);
    if (by_file(text, &err) != HX_UI_NEXT)
        fail_msg("%s", err.text);
    own_lock_in_force();
    free(key);
}

static void test_driver(void **state)
{
    char text[1000], *key = key_text("ed25519.pub");
    struct hx_error err;
    (void)state;
    snprintf(text, sizeof(text),
             "schema = 1\nadmin_key = %s\ndriver_source = /media/good\n"
             "accept_driver_licence = NVIDIA-driver\n",
             key);
    if (by_file(text, &err) != HX_UI_NEXT)
        fail_msg("%s", err.text);
    holds(HX_SETUP_BOX, "driver_source = /media/good\n");
    free(key);
}

/* The token is in a file of its own that only root reads, nowhere else; its source is gone. */
static void test_token(void **state)
{
    char text[1000], at[200], *key = key_text("ed25519.pub");
    struct hx_error err;
    struct stat st;
    (void)state;
    put("/media/token", "tok_Geheim123\n");
    snprintf(text, sizeof(text),
             "schema = 1\nadmin_key = %s\nmodel = demo\naccept_model_licence = yes\n"
             "token_file = /media/token\n",
             key);
    if (by_file(text, &err) != HX_UI_NEXT)
        fail_msg("%s", err.text);
    holds(HX_SETUP_TOKEN, "tok_Geheim123");
    holds("/run/credstore/hub_token", "tok_Geheim123");
    snprintf(at, sizeof(at), "%s%s", root, HX_SETUP_TOKEN);
    assert_int_equal(stat(at, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_false(there("/media/token"));
    char *box = get(HX_SETUP_BOX);
    assert_null(strstr(box, "Geheim"));
    assert_non_null(strstr(box, "token_file = \n"));
    free(box);
    free(key);
}

/* ---- by lines -------------------------------------------------------------------------------- */

struct talk {
    enum hx_ui_reply reply;
    char *out;
    struct hx_error err;
};

static struct talk by_lines_step(const char *input, const char *only)
{
    struct talk t = {0};
    struct hx_setup s;
    size_t n = 0;
    assert_int_equal(hx_setup_open(&s, root, COMMANDS, &t.err), 0);
    assert_int_equal(hx_setup_load(&s, &t.err), 0);
    FILE *in =
        *input ? fmemopen((void *)(uintptr_t)input, strlen(input), "r") : fopen("/dev/null", "r");
    FILE *out = open_memstream(&t.out, &n);
    assert_non_null(in);
    assert_non_null(out);
    assert_int_equal(hx_ui_plain_open(in, out, 78, &s.ui, &t.err), 0);
    t.reply = hx_setup_run(&s, only, &t.err);
    hx_ui_close(s.ui);
    hx_setup_close(&s);
    fclose(in);
    fclose(out);
    return t;
}

static struct talk by_lines(const char *input)
{
    return by_lines_step(input, NULL);
}

/* The shortest way through, one entry for each question. */
static int whole_way(const char *lines[40], const char *key)
{
    const char *way[] = {"box1", key,   "", "1", "", "", "", /* name, keys, network */
                         "",     "",    "",                  /* time, driver, hardware */
                         "1",    "yes", "", "",  "", "",     /* model */
                         "",     "",    "",                  /* performance */
                         "yes",  ""};
    memcpy(lines, way, sizeof(way));
    return sizeof(way) / sizeof(way[0]);
}

static char *joined(const char *const *lines, int n)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s\n", lines[i]);
    fclose(f);
    return text;
}

/* The last choice leads to a path; a no to the hash leads back to the choice; later runs keep it.
 */
static void test_own_lock_by_lines(void **state)
{
    char input[1000], *key = key_text("ed25519.pub");
    (void)state;
    snprintf(input, sizeof(input),
             "box1\n%s\n\n1\n\n\n\n\n\n\n" /* up to the hardware report */
             "4\n/media/none\n/media/own.json\nyes\nyes\n\n\n\n\n"
             "\n\n\nyes\n\n",
             key);
    struct talk t = by_lines(input);
    if (t.reply != HX_UI_NEXT)
        fail_msg("%s\n%s", t.err.text, t.out);
    assert_non_null(strstr(t.out, "/media/none is not there; plug in the stick"));
    assert_non_null(strstr(t.out, OWN_SHA256));
    free(t.out);
    own_lock_in_force();
    t = by_lines_step("3\nyes\n\n\n\n\n", "model");
    if (t.reply != HX_UI_NEXT)
        fail_msg("%s\n%s", t.err.text, t.out);
    free(t.out);
    own_lock_in_force();
    t = by_lines_step("1\nyes\n\n\n\n\n", "model");
    if (t.reply != HX_UI_NEXT)
        fail_msg("%s\n%s", t.err.text, t.out);
    free(t.out);
    holds("/run/hx170/fetch.conf.d/50-box.conf", "lock = /usr/share/hx170/locks/demo.json\n");
    free(key);
}

/* Leaving at every question, by q or by the end of the line: what was answered is kept, the next
 * run goes on at the first screen that is open, and the end is the same. */
static void test_leave_and_go_on(void **state)
{
    const char *lines[40];
    char *key = key_text("ed25519.pub"), *first = NULL;
    int n = whole_way(lines, key);
    (void)state;
    for (int stop = 0; stop < n - 1; stop++) {
        assert_int_equal(setup(NULL), 0);
        const char *leave[41];
        memcpy(leave, lines, sizeof(lines));
        leave[stop] = "q";
        char *input = joined(leave, stop % 2 ? stop + 1 : stop);
        struct talk t = by_lines(input);
        assert_int_equal(t.reply, HX_UI_QUIT);
        assert_false(there(HX_SETUP_BOX));
        free(t.out);
        free(input);
        /* The screens whose first question has this place among the lines. */
        static const int starts[] = {0, 1, 3, 7, 8, 9, 10, 16, 19};
        int at = 8;
        while (starts[at] > stop)
            at--;
        int from = starts[at];
        /* A key that was taken before leaving counts. */
        input = joined(lines + from, n - from);
        t = by_lines(input);
        if (t.reply != HX_UI_NEXT)
            fail_msg("stop %d: %s", stop, t.out);
        char *box = get(HX_SETUP_BOX);
        assert_non_null(box);
        if (!first)
            first = box;
        else
            assert_string_equal(first, box);
        if (box != first)
            free(box);
        free(t.out);
        free(input);
        assert_int_equal(teardown(NULL), 0);
    }
    assert_int_equal(setup(NULL), 0);
    free(first);
    free(key);
}

/* Back from every screen, with b. */
static void test_back(void **state)
{
    (void)state;
    struct talk t = by_lines("box1\nb\nbox2\nq\n");
    assert_int_equal(t.reply, HX_UI_QUIT);
    holds(HX_SETUP_DRAFT, "hostname = box2\n");
    free(t.out);
    char *key = key_text("ed25519.pub"), text[1000];
    /* Address, then back to the kind, then DHCP: the address is forgotten. */
    snprintf(text, sizeof(text), "%s\n\n2\n10.0.0.2/24\nb\nb\n1\n\n\n\nq\n", key);
    t = by_lines(text);
    holds(HX_SETUP_DRAFT, "network = dhcp\naddress = \n");
    free(t.out);
    free(key);
}

/* No at the review changes nothing; a failing apply is shown and changes nothing. */
static void test_review(void **state)
{
    const char *lines[40];
    char *key = key_text("ed25519.pub");
    int n = whole_way(lines, key);
    (void)state;
    lines[n - 2] = "no";
    char *input = joined(lines, n - 1);
    struct talk t = by_lines(input);
    assert_int_equal(t.reply, HX_UI_QUIT);
    assert_false(there(HX_SETUP_BOX));
    free(t.out);
    free(input);
    teardown(NULL);
    setup(NULL);
    lines[n - 2] = "yes";
    lines[8] = "/media/breaks";
    input = joined(lines, n - 1);
    t = by_lines(input);
    assert_int_equal(t.reply, HX_UI_QUIT);
    assert_non_null(strstr(t.out, "could not be put in force, and nothing was changed"));
    assert_non_null(strstr(t.out, "the build ended with status 2"));
    assert_false(there(HX_SETUP_BOX));
    assert_true(there(HX_SETUP_DRAFT));
    free(t.out);
    free(input);
    free(key);
}

/* One step again later; the settings before it are kept. */
static void test_one_step(void **state)
{
    const char *lines[40];
    char *key = key_text("ed25519.pub"), *input;
    int n = whole_way(lines, key);
    (void)state;
    input = joined(lines, n);
    struct talk t = by_lines(input);
    assert_int_equal(t.reply, HX_UI_NEXT);
    free(t.out);
    free(input);
    t = by_lines_step("box9\n", "name");
    assert_int_equal(t.reply, HX_UI_NEXT);
    free(t.out);
    holds(HX_SETUP_BOX, "hostname = box9\n");
    holds(HX_SETUP_OLD, "hostname = box1\n");
    holds("/run/hx170/hostname", "box9\n");
    /* Leaving it changes nothing. */
    t = by_lines_step("q\n", "name");
    assert_int_equal(t.reply, HX_UI_QUIT);
    holds(HX_SETUP_BOX, "hostname = box9\n");
    free(t.out);
    free(key);
}

/* Settings of a newer system, or damaged ones: said, and nothing is guessed. */
static void test_settings_not_understood(void **state)
{
    struct hx_setup s;
    struct hx_error err;
    (void)state;
    put(HX_SETUP_BOX, "schema = 2\nhostname = x\n");
    assert_int_equal(hx_setup_open(&s, root, COMMANDS, &err), 0);
    assert_int_equal(hx_setup_load(&s, &err), -EINVAL);
    assert_non_null(strstr(err.text, "schema 2 is newer than this system"));
    assert_int_equal(hx_setup_render(&s, &err), -EINVAL);
    assert_false(there("/run/hx170/hostname"));
    hx_setup_close(&s);
}

static void test_lock(void **state)
{
    struct hx_setup one, two;
    struct hx_error err;
    char holder[160];
    (void)state;
    assert_int_equal(hx_setup_open(&one, root, COMMANDS, &err), 0);
    assert_int_equal(hx_setup_open(&two, root, COMMANDS, &err), 0);
    assert_int_equal(hx_setup_lock(&one, holder, sizeof(holder), &err), 0);
    assert_int_equal(hx_setup_lock(&two, holder, sizeof(holder), &err), -EBUSY);
    assert_non_null(strstr(holder, "process "));
    hx_setup_unlock(&one);
    assert_int_equal(hx_setup_lock(&two, holder, sizeof(holder), &err), 0);
    hx_setup_unlock(&two);
    hx_setup_close(&one);
    hx_setup_close(&two);
}

/* A file that cannot be written is named, before anything counts. */
static void test_cannot_write(void **state)
{
    const char *lines[40];
    char *key = key_text("ed25519.pub");
    int n = whole_way(lines, key);
    (void)state;
    put(HX_SETUP_DRAFT ".new/x", "a folder in the file's place");
    char *input = joined(lines, n);
    struct talk t = by_lines(input);
    assert_int_equal(t.reply, HX_UI_ERROR);
    assert_non_null(strstr(t.err.text, "/var/lib/hx170"));
    free(t.out);
    free(input);
    free(key);
}

static void test_offline_folder(void **state)
{
    char text[1000], *key = key_text("ed25519.pub");
    struct hx_error err;
    (void)state;
    put("/media/a \"b\" %c/x", "x");
    snprintf(
        text, sizeof(text),
        "schema = 1\nadmin_key = %s\nnetwork = none\nmodel = demo\naccept_model_licence = yes\n"
        "model_source = /media/a \"b\" %%c\n",
        key);
    if (by_file(text, &err) != HX_UI_NEXT)
        fail_msg("%s", err.text);
    holds("/run/systemd/system/hx-fetch.service.d/50-box.conf",
          "ExecStartPre=-/usr/bin/hx-fetch import \"/media/a \\\"b\\\" %%c\"\n");
    holds("/run/systemd/system/hx-fetch.service.d/50-box.conf", "After=hx-media.service\n");
    free(key);
}

/* The download may go into the owner's network only if something there was named. */
static void test_mirror_nearby(void **state)
{
    static const char drop_in[] = "/run/systemd/system/hx-fetch.service.d/50-box.conf";
    char text[1000], at[300], *key = key_text("ed25519.pub");
    struct hx_error err;
    (void)state;
    static const struct {
        const char *line;
        bool opened;
    } rows[] = {{"model_source = http://192.168.1.9:8080/m", true},
                {"model_source = default", false},
                {"proxy = http://10.0.0.1:3128", true}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text),
                 "schema = 1\nadmin_key = %s\nmodel = demo\naccept_model_licence = yes\n%s\n", key,
                 rows[i].line);
        if (by_file(text, &err) != HX_UI_NEXT)
            fail_msg("%s", err.text);
        snprintf(at, sizeof(at), "%s%s", root, drop_in);
        if (rows[i].opened)
            holds(drop_in, "IPAddressDeny=\nIPAddressDeny=link-local multicast\n");
        else
            assert_int_equal(access(at, F_OK), -1);
    }
    free(key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answers_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answers_that_do_not_work_here, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_lock, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_lock_by_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_driver, setup, teardown),
        cmocka_unit_test_setup_teardown(test_token, setup, teardown),
        cmocka_unit_test_teardown(test_leave_and_go_on, teardown),
        cmocka_unit_test_setup_teardown(test_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_review, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_settings_not_understood, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lock, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cannot_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_offline_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mirror_nearby, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
