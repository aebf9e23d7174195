/* Answers files: strict, with file and line (F6 of the test plan), and writing what was read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "setup/box.h"

#define ANSWERS "tests/vectors/setup/answers.conf"

static char *key_line(const char *name)
{
    char path[200], *text;
    size_t n;
    struct hx_error err;
    snprintf(path, sizeof(path), "tests/vectors/setup/%s", name);
    assert_int_equal(hx_file_read(path, 1 << 16, &text, &n, &err), 0);
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static void test_every_key(void **state)
{
    struct hx_box box;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_box_read(ANSWERS, HX_BOX_ANSWERS, &box, &err), 0);
    assert_int_equal(hx_box_check(&box, HX_BOX_ANSWERS, &err), 0);
    assert_string_equal(box.hostname, "box-7");
    assert_int_equal(box.n_admin_keys, 2);
    assert_int_equal(box.network, HX_NET_STATIC);
    assert_string_equal(box.address, "192.168.1.5/24");
    assert_string_equal(box.gateway, "192.168.1.1");
    assert_string_equal(box.dns, "192.168.1.1 9.9.9.9");
    assert_int_equal(box.vlan, 7);
    assert_string_equal(box.proxy, "http://proxy.example:3128");
    assert_string_equal(box.model, "demo");
    assert_int_equal(box.bandwidth, 5 << 20);
    assert_string_equal(box.schedule, "22:00-06:00");
    assert_int_equal(box.power_cap_watts, 200);
    assert_int_equal(box.layout, HX_BOX_PP4);
    assert_int_equal(box.context, 65536);
    assert_string_equal(box.expert_cmdline, "iommu=pt pcie_aspm=off");
    assert_true(hx_box_given(&box, "hostname"));
    assert_true(hx_box_given(&box, "admin_key"));
    assert_false(hx_box_given(&box, "token_file"));
    hx_box_done(&box);
}

/* What is written is read again as the same, in both forms. */
static void test_round_trip(void **state)
{
    struct hx_box box, again;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_box_read(ANSWERS, HX_BOX_ANSWERS, &box, &err), 0);
    hx_box_set_done(&box, "name", true);
    for (int form = HX_BOX_ANSWERS; form <= HX_BOX_STATE; form++) {
        struct hx_buf a = HX_BUF_INIT(1 << 20), b = HX_BUF_INIT(1 << 20);
        assert_int_equal(hx_box_write(&box, (enum hx_box_form)form, &a), 0);
        assert_int_equal(
            hx_box_parse((char *)a.data, a.len, "x", (enum hx_box_form)form, &again, &err), 0);
        assert_int_equal(hx_box_write(&again, (enum hx_box_form)form, &b), 0);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        assert_int_equal(hx_box_is_done(&again, "name"), form == HX_BOX_STATE);
        hx_box_done(&again);
        hx_buf_done(&a);
        hx_buf_done(&b);
    }
    hx_box_done(&box);
}

static void refused(const char *text, size_t len, enum hx_box_form form, const char *want)
{
    struct hx_box box = {.vlan = 77};
    struct hx_error err;
    assert_int_equal(hx_box_parse(text, len, "f", form, &box, &err), -EINVAL);
    if (strncmp(err.text, want, strlen(want)) != 0)
        fail_msg("expected '%s...', got '%s'", want, err.text);
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(box.vlan, 77); /* untouched */
}

/* Back from a later version: what only that one knows stays in the file. */
static void test_keys_of_a_later_system(void **state)
{
    (void)state;
    static const char text[] = "schema = 1\nhostname = a\nfan_speed = 70 %\nlights =\n";
    struct hx_box box, copy;
    struct hx_error err;
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    assert_int_equal(hx_box_parse(text, strlen(text), "f", HX_BOX_STATE, &box, &err), 0);
    assert_string_equal(box.hostname, "a");
    assert_int_equal(hx_box_copy(&box, &copy, &err), 0);
    assert_int_equal(hx_box_write(&copy, HX_BOX_STATE, &out), 0);
    const char *said = hx_buf_cstr(&out);
    assert_non_null(said);
    assert_non_null(strstr(said, "\nfan_speed = 70 %\nlights = \n"));
    out.len = 0;
    assert_int_equal(hx_box_write(&copy, HX_BOX_ANSWERS, &out), 0);
    assert_null(strstr(hx_buf_cstr(&out), "fan_speed"));
    hx_buf_done(&out);
    hx_box_done(&box);
    hx_box_done(&copy);

    char many[4096] = "schema = 1\n";
    for (int i = 0; i < 60; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), "key%02d = %040d\n", i, i);
    refused(many, strlen(many), HX_BOX_STATE, "f:43: too many keys that this system");
    refused("fan = 1\n", 8, HX_BOX_STATE, "f:1: unknown key 'fan'");
    refused("schema = 2\nfan = 1\n", 19, HX_BOX_STATE, "f:1: schema 2 is newer");
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"", "f:1: the first line has to be: schema = 1"},
        {"# nothing\n\n", "f:1: the first line has to be: schema = 1"},
        {"hostname = a\n", "f:1: the first line has to be: schema = 1"},
        {"schema = 2\n", "f:1: schema 2 is newer than this system, which knows 1"},
        {"schema = one\n", "f:1: schema: found 'one', expected an integer"},
        {"schema = 1\nhostnme = a\n", "f:2: unknown key 'hostnme'"},
        {"schema = 1\ndone = name\n", "f:2: unknown key 'done'"},
        {"schema = 1\nhostname = a\n\n# x\nhostname = b\n",
         "f:5: 'hostname' is there twice, first in line 2"},
        {"schema = 1\nschema = 1\n", "f:2: 'schema' is there twice, first in line 1"},
        {"schema = 1\nhostname\n", "f:2: expected 'key = value', found 'hostname'"},
        {"schema = 1\n= a\n", "f:2: expected 'key = value', found '= a'"},
        {"schema = 1\n[box]\n", "f:2: expected 'key = value', found '[box]'"},
        {"schema = 1\nhostname = a b\n", "f:2: hostname: found 'a b', expected 1 to 63"},
        {"schema = 1\nadmin_key = ssh-rsa AAAA\n", "f:2: admin_key: the key is damaged"},
        {"schema = 1\naddress = 1.2.3.4\n", "f:2: address: found '1.2.3.4', expected an address"},
        {"schema = 1\nnetwork = wifi\n",
         "f:2: network: found 'wifi', expected one of: dhcp static none"},
        {"schema = 1\nvlan = 4095\n",
         "f:2: vlan: found '4095', expected an integer from 0 to 4094"},
        {"schema = 1\npower_cap_watts = 99999999999999999999\n", "f:2: power_cap_watts: found"},
        {"schema = 1\nbandwidth = fast\n", "f:2: bandwidth: found 'fast', expected a size"},
        {"schema = 1\nkeep_models = maybe\n",
         "f:2: keep_models: found 'maybe', expected yes or no"},
        {"schema = 1\nhostname = a\x01\n", "f:2: a control character in the line"},
        {"schema = 1\nhostname = \xff\n", "f:2: not valid UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refused(rows[i].text, strlen(rows[i].text), HX_BOX_ANSWERS, rows[i].want);
    refused("schema = 1\nhost\0name = a\n", 24, HX_BOX_ANSWERS, "f:2: a NUL byte in the line");
    refused("schema = 1\nmode = install\n", 26, HX_BOX_STATE,
            "f:2: 'mode' belongs into an answers file only");
}

static void test_line_of_a_megabyte(void **state)
{
    size_t n = (1 << 20) + 100;
    char *text = malloc(n);
    (void)state;
    assert_non_null(text);
    memset(text, 'a', n);
    memcpy(text, "schema = 1\nhostname = ", 22);
    refused(text, n, HX_BOX_ANSWERS, "f:2: the line has 1048665 bytes, at most 12288 are allowed");
    free(text);
}

/* Editors of other systems: byte order mark, CRLF, tabs, no line feed at the end. */
static void test_editors(void **state)
{
    static const char text[] = "\xEF\xBB\xBFschema = 1\r\n\thostname\t=\tbox \r\nvlan=5";
    struct hx_box box;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_box_parse(text, strlen(text), "f", HX_BOX_ANSWERS, &box, &err), 0);
    assert_string_equal(box.hostname, "box");
    assert_int_equal(box.vlan, 5);
    hx_box_done(&box);
}

static void test_keys(void **state)
{
    char *a = key_line("ed25519.pub"), *b = key_line("second.pub"), other[400];
    struct hx_box box, copy;
    struct hx_error err;
    bool merged = true;
    (void)state;
    hx_box_init(&box);
    assert_int_equal(hx_box_add_key(&box, a, &merged, &err), 0);
    assert_false(merged);
    snprintf(other, sizeof(other), "%.80s another comment", a); /* type and data */
    assert_int_equal(hx_box_add_key(&box, other, &merged, &err), 0);
    assert_true(merged);
    assert_int_equal(hx_box_add_key(&box, b, &merged, &err), 0);
    assert_int_equal(box.n_admin_keys, 2);
    assert_int_equal(hx_box_copy(&box, &copy, &err), 0);
    assert_string_equal(copy.admin_key[1], b);
    assert_ptr_not_equal(copy.admin_key[1], box.admin_key[1]);
    hx_box_done(&copy);
    hx_box_done(&box);
    free(a);
    free(b);
}

/* What fits alone but not together. */
static void test_together(void **state)
{
    static const struct {
        const char *set[3][2];
        enum hx_box_form form;
        const char *want;
    } rows[] = {
        {{{"network", "static"}}, HX_BOX_STATE, "address: missing"},
        {{{"network", "static"}, {"address", "10.0.0.2/24"}, {"gateway", "10.0.1.1"}},
         HX_BOX_STATE,
         "gateway: the router 10.0.1.1 is not in the network"},
        {{{"address", "10.0.0.2/24"}}, HX_BOX_STATE, "address: only network = static has one"},
        {{{"gateway", "10.0.0.1"}}, HX_BOX_STATE, "gateway: only network = static has one"},
        {{{"network", "none"}, {"vlan", "3"}}, HX_BOX_STATE, "network: none, but"},
        {{{"driver_sha256", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}},
         HX_BOX_STATE,
         "driver_sha256: given, but"},
        {{{"model", "demo"}}, HX_BOX_STATE, "accept_model_licence: has to be yes"},
        {{{"model", "demo"}, {"accept_model_licence", "yes"}, {"network", "none"}},
         HX_BOX_STATE,
         "model_source: network = none leaves only"},
        {{{"target_serial", "A1"}, {"confirm_erase_serial", "A2"}},
         HX_BOX_ANSWERS,
         "confirm_erase_serial: differs from target_serial"},
        {{{"target_serial", "A1"}}, HX_BOX_ANSWERS, "confirm_erase_serial: missing"},
        {{{"mode", "install"}}, HX_BOX_ANSWERS, "target_serial: missing"},
        {{{"mode", "reinstall"}, {"target_serial", "A1"}, {"confirm_erase_serial", "A1"}},
         HX_BOX_ANSWERS,
         "keep_models: has to be yes"},
        {{{"keep_models", "yes"}}, HX_BOX_ANSWERS, "keep_models: only mode = reinstall"},
    };
    char *key = key_line("ed25519.pub");
    struct hx_error err;
    struct hx_box box;
    (void)state;
    hx_box_init(&box);
    assert_int_equal(hx_box_check(&box, HX_BOX_STATE, &err), -EINVAL);
    assert_non_null(strstr(err.text, "admin_key: missing; there are no passwords"));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        hx_box_init(&box);
        assert_int_equal(hx_box_add_key(&box, key, NULL, &err), 0);
        assert_int_equal(hx_box_check(&box, rows[i].form, &err), 0);
        for (size_t k = 0; k < 3 && rows[i].set[k][0]; k++)
            assert_int_equal(hx_box_set(&box, rows[i].set[k][0], rows[i].set[k][1], &err), 0);
        assert_int_equal(hx_box_check(&box, rows[i].form, &err), -EINVAL);
        if (strncmp(err.text, rows[i].want, strlen(rows[i].want)) != 0)
            fail_msg("row %zu: '%s'", i, err.text);
        hx_box_done(&box);
    }
    free(key);
}

static void test_steps_done(void **state)
{
    struct hx_box box;
    (void)state;
    hx_box_init(&box);
    hx_box_set_done(&box, "name", true);
    hx_box_set_done(&box, "network", true);
    hx_box_set_done(&box, "name", true);
    assert_string_equal(box.done, "name network");
    assert_false(hx_box_is_done(&box, "net"));
    assert_true(hx_box_is_done(&box, "network"));
    hx_box_set_done(&box, "name", false);
    assert_string_equal(box.done, "network");
    hx_box_set_done(&box, "network", false);
    assert_string_equal(box.done, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_keys_of_a_later_system),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_line_of_a_megabyte),
        cmocka_unit_test(test_editors),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_steps_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
