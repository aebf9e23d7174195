/* What a support archive must not tell. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "setup/redact.h"

static void test_lines(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"inet 192.168.1.77/24 brd 192.168.1.255", "inet ip-1/24 brd ip-2"},
        {"from 192.168.1.77 port 22, then 192.168.1.77:8000.",
         "from ip-1 port 22, then ip-1:8000."},
        {"127.0.0.1:8000 and 0.0.0.0 stay", "127.0.0.1:8000 and 0.0.0.0 stay"},
        {"fe80::1%eth0 [fd00::5]:22 ::1", "ip-3%eth0 [ip-4]:22 ::1"},
        {"ether 52:54:00:12:34:56", "ether mac-1"},
        {"GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427", "id-1"},
        {"boot_id 1b4e28ba2fa111d2883f0016d3cca427 done", "boot_id id-2 done"},
        {"sha256 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
         "sha256 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
        {"Serial: S5GXNX0R123456 of the disk", "Serial: serial-1 of the disk"},
        {"\"serial\":\"S5GXNX0R123456\"", "\"serial\":\"serial-1\""},
        {"pci 0000:01:00.0 at 12:34:56 v1.2.3", "pci 0000:01:00.0 at 12:34:56 v1.2.3"},
        {"mybox systemd[1]: mybox.lan mybox2", "(host) systemd[1]: (host).lan mybox2"},
        {"token hf_abcdefghijklmnop used", "token (secret) used"},
        {"x=Pa55w0rd! xPa55w0rd!y", "x=(secret) x(secret)y"},
        {"admin_key = ssh-ed25519 "
         "AAAAC3NzaC1lZDI1NTE5AAAAIMteAN/y6Te6pa0C3OpXS/1j5/8mTG+O7O6ZCZj58HSu me@home",
         "admin_key = ssh-ed25519 (key)"},
        {"", ""},
    };
    struct hx_redact *r;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_redact_new(&r, &err), 0);
    assert_int_equal(hx_redact_word(r, "mybox", "host", &err), 0);
    assert_int_equal(hx_redact_word(r, "Pa55w0rd!", "secret", &err), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hx_buf out = HX_BUF_INIT(1 << 16);
        assert_int_equal(hx_redact_text(r, rows[i].in, strlen(rows[i].in), &out), 0);
        if (out.len != strlen(rows[i].out) ||
            (out.len && memcmp(out.data, rows[i].out, out.len) != 0))
            fail_msg("'%s' became '%.*s'", rows[i].in, (int)out.len, (char *)out.data);
        hx_buf_done(&out);
    }
    hx_redact_free(r);
}

/* Lines stay lines, bytes that are no text pass through. */
static void test_form(void **state)
{
    static const char in[] = "a\n\nb\xff\0c\n10.1.2.3";
    struct hx_buf out = HX_BUF_INIT(1 << 16);
    struct hx_redact *r;
    struct hx_error err;
    (void)state;
    assert_int_equal(hx_redact_new(&r, &err), 0);
    assert_int_equal(hx_redact_text(r, in, sizeof(in) - 1, &out), 0);
    assert_int_equal(out.len, 12);
    assert_memory_equal(out.data, "a\n\nb\xff\0c\nip-1", 12);
    hx_buf_done(&out);
    hx_redact_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_form)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
