/* Machines: the command line, and QEMU started with a boot sector that speaks on the serial port.
 * No image needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "image/vm.h"

/* A boot sector in real mode. It writes the text at MESSAGE to the first serial port and does then
 * what the byte at MODE says: answer every byte that is typed with "typed: " and that byte, or
 * reset the machine. */
#define MODE    0x80
#define MESSAGE 0x81
enum { ANSWER = 0, RESET = 1 };

__asm__(".pushsection .rodata\n"
        ".code16\n"
        "boot_code:\n"
        "  cli\n"
        "  xorw %ax, %ax\n"
        "  movw %ax, %ds\n"
        "  cld\n"
        "  movw $0x7c81, %si\n"
        "  call print\n"
        "  cmpb $1, 0x7c80\n"
        "  jne answer\n"
        "  movb $0xfe, %al\n"
        "  outb %al, $0x64\n"
        "answer:\n"
        "  movw $0x3fd, %dx\n"
        "  inb %dx, %al\n"
        "  testb $1, %al\n"
        "  jz answer\n"
        "  movw $0x3f8, %dx\n"
        "  inb %dx, %al\n"
        "  movb %al, %bl\n"
        "  movw $(0x7c00 + boot_typed - boot_code), %si\n"
        "  call print\n"
        "  movb %bl, %al\n"
        "  call put\n"
        "  movb $10, %al\n"
        "  call put\n"
        "  jmp answer\n"
        "print:\n"
        "  lodsb\n"
        "  testb %al, %al\n"
        "  jz done\n"
        "  call put\n"
        "  jmp print\n"
        "put:\n"
        "  movb %al, %ah\n"
        "busy:\n"
        "  movw $0x3fd, %dx\n"
        "  inb %dx, %al\n"
        "  testb $0x20, %al\n"
        "  jz busy\n"
        "  movb %ah, %al\n"
        "  movw $0x3f8, %dx\n"
        "  outb %al, %dx\n"
        "done:\n"
        "  ret\n"
        "boot_typed: .asciz \"typed: \"\n"
        "boot_end:\n"
        ".code64\n"
        ".popsection\n");
extern const unsigned char boot_code[], boot_end[];

static char folder[64];
static char sector_path[128];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/hx-vm-XXXXXX");
    snprintf(sector_path, sizeof(sector_path), "%s/disk", mkdtemp(folder) ? folder : "");
    return folder[0] ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static int tear_down(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void write_sector(const char *message, unsigned char mode)
{
    /* The firmware boots from no disk that is smaller than a cylinder. */
    static unsigned char sector[1 << 20];
    memset(sector, 0, sizeof(sector));
    size_t n = (size_t)(boot_end - boot_code);
    assert_true(n <= MODE && strlen(message) < 510 - MESSAGE);
    memcpy(sector, boot_code, n);
    sector[MODE] = mode;
    memcpy(sector + MESSAGE, message, strlen(message));
    sector[510] = 0x55;
    sector[511] = 0xaa;
    assert_int_equal(hx_file_replace(sector_path, sector, sizeof(sector), NULL), 0);
}

static struct hx_vm_setup small(void)
{
    return (struct hx_vm_setup){
        .name = "small",
        .folder = folder,
        .memory_mib = 64,
        .cpus = 1,
        .n_disks = 1,
        .disks = {{.path = sector_path, .bus = HX_VM_IDE, .boot = 0}},
    };
}

static void need_qemu(void)
{
    struct hx_error err;
    if (!hx_vm_available(&err)) {
        print_message("# SKIP %s\n", err.text);
        skip();
    }
}

static int64_t soon(void)
{
    return hx_child_clock() + 60000;
}

static void test_marker(void **state)
{
    (void)state;
    need_qemu();
    write_sector("\x1b[2J\x1b[1;1Hhx-\x1b[1mboot\x1b[0m: first\nhx-boot: second\n", ANSWER);
    struct hx_vm_setup setup = small();
    struct hx_vm vm;
    struct hx_error err;
    if (hx_vm_start(&vm, &setup, &err))
        fail_msg("%s", err.text);
    pid_t pid = vm.qemu.pid;
    if (hx_vm_wait(&vm, "hx-boot: first", soon(), &err))
        fail_msg("%s", err.text);
    /* The second marker lies behind the first, the first is not found again. */
    const char *const markers[] = {"hx-boot: first", "hx-boot: second"};
    unsigned which = 9;
    if (hx_vm_wait_any(&vm, markers, 2, &which, soon(), &err))
        fail_msg("%s", err.text);
    assert_int_equal(which, 1);
    /* Typing, and the answer to it. */
    if (hx_vm_type(&vm, "k", &err) || hx_vm_wait(&vm, "typed: k", soon(), &err))
        fail_msg("%s", err.text);
    /* A deadline is kept and says what came last. */
    int64_t start = hx_child_clock();
    assert_int_equal(hx_vm_wait(&vm, "never", start + 300, &err), -ETIMEDOUT);
    assert_true(hx_child_clock() - start < 10000);
    assert_non_null(strstr(err.text, "'never'"));
    assert_non_null(strstr(err.text, "typed: k"));
    /* The monitor answers. */
    struct hx_buf answer = HX_BUF_INIT(4096);
    if (hx_vm_monitor(&vm, "info status", &answer, &err))
        fail_msg("%s", err.text);
    const char *text = hx_buf_cstr(&answer);
    assert_non_null(text);
    assert_non_null(strstr(text, "running"));
    assert_null(strstr(text, "(qemu)"));
    hx_buf_done(&answer);
    hx_vm_close(&vm);
    assert_int_equal(kill(pid, 0), -1);
    /* Logs stay, sockets and the pidfile go. */
    char path[128];
    snprintf(path, sizeof(path), "%s/small.serial", folder);
    assert_int_equal(access(path, F_OK), 0);
    static const char *const gone[] = {"pid", "tty", "mon"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/small.%s", folder, gone[i]);
        assert_int_equal(access(path, F_OK), -1);
    }
}

static void test_exit_is_noticed(void **state)
{
    (void)state;
    need_qemu();
    write_sector("hx-boot: bye\n", RESET);
    struct hx_vm_setup setup = small();
    setup.stop_at_reboot = true;
    struct hx_vm vm;
    struct hx_error err;
    if (hx_vm_start(&vm, &setup, &err))
        fail_msg("%s", err.text);
    /* The wait ends with QEMU, long before its deadline. */
    int64_t start = hx_child_clock();
    assert_int_equal(hx_vm_wait(&vm, "never", start + 600000, &err), -EPIPE);
    assert_true(hx_child_clock() - start < 60000);
    assert_non_null(strstr(err.text, "hx-boot: bye"));
    assert_non_null(strstr(err.text, "exit status 0"));
    assert_int_equal(hx_vm_wait_exit(&vm, soon(), &err), 0);
    hx_vm_close(&vm);
}

/* A guest without a timer goes on for hours and gets nowhere. */
static void test_lost_timer(void **state)
{
    (void)state;
    need_qemu();
    static const char said[] = "rcu: rcu_preempt kthread timer wakeup didn't happen for 5251 "
                               "jiffies! g-1071\n";
    char text[256];
    for (int twice = 0; twice < 2; twice++) {
        snprintf(text, sizeof(text), "hx-boot: up\n%s%s", said, twice ? said : "hx-boot: on\n");
        write_sector(text, ANSWER);
        struct hx_vm_setup setup = small();
        struct hx_vm vm;
        struct hx_error err;
        if (hx_vm_start(&vm, &setup, &err) || hx_vm_wait(&vm, "hx-boot: up", soon(), &err))
            fail_msg("%s", err.text);
        int64_t start = hx_child_clock();
        int r = hx_vm_wait(&vm, "hx-boot: on", start + 600000, &err);
        assert_int_equal(r, twice ? -EIO : 0);
        if (twice)
            assert_non_null(strstr(err.text, "lost the timer of a processor"));
        assert_true(hx_child_clock() - start < 60000);
        hx_vm_close(&vm);
    }
}

static void test_reset_boots_again(void **state)
{
    (void)state;
    need_qemu();
    write_sector("hx-boot: again\n", RESET);
    struct hx_vm_setup setup = small();
    struct hx_vm vm;
    struct hx_error err;
    if (hx_vm_start(&vm, &setup, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < 3; i++)
        if (hx_vm_wait(&vm, "hx-boot: again", soon(), &err))
            fail_msg("boot %d: %s", i, err.text);
    hx_vm_kill(&vm);
    assert_int_equal(hx_vm_wait_exit(&vm, soon(), &err), -EPIPE);
    assert_non_null(strstr(err.text, "signal 9"));
    hx_vm_close(&vm);
}

static void test_bad_disk(void **state)
{
    (void)state;
    need_qemu();
    struct hx_vm_setup setup = small();
    setup.disks[0].path = "/tmp/hx-there-is-no-such-disk";
    struct hx_vm vm;
    struct hx_error err;
    assert_int_equal(hx_vm_start(&vm, &setup, &err), 0);
    assert_int_equal(hx_vm_wait(&vm, "never", soon(), &err), -EPIPE);
    assert_non_null(strstr(err.text, "no-such-disk"));
    assert_non_null(strstr(err.text, "exit status 1"));
    hx_vm_close(&vm);
}

static void test_all_devices(void **state)
{
    (void)state;
    need_qemu();
    write_sector("hx-boot: devices\n", ANSWER);
    char blank[128];
    snprintf(blank, sizeof(blank), "%s/blank", folder);
    static const char zeros[1 << 20];
    assert_int_equal(hx_file_replace(blank, zeros, sizeof(zeros), NULL), 0);
    struct hx_vm_setup setup = small();
    setup.disks[setup.n_disks++] = (struct hx_vm_disk){.path = blank,
                                                       .serial = "HX-TARGET-1",
                                                       .bus = HX_VM_NVME,
                                                       .sector = 4096,
                                                       .boot = 1,
                                                       .snapshot = true};
    setup.disks[setup.n_disks++] =
        (struct hx_vm_disk){.path = blank, .bus = HX_VM_USB, .boot = -1, .read_only = true};
    setup.disks[setup.n_disks++] = (struct hx_vm_disk){
        .path = blank, .serial = "HX-SPARE", .bus = HX_VM_VIRTIO, .boot = -1, .snapshot = true};
    setup.credentials[setup.n_credentials++] =
        (struct hx_vm_credential){"hx170.answers", "schema = 1\n"};
    setup.network = true;
    setup.relay = "cat";
    setup.watchdog = true;
    struct hx_vm vm;
    struct hx_error err;
    if (hx_vm_start(&vm, &setup, &err) || hx_vm_wait(&vm, "hx-boot: devices", soon(), &err))
        fail_msg("%s", err.text);
    unsigned port = 0;
    if (hx_vm_ssh_port(&vm, &port, &err))
        fail_msg("%s", err.text);
    assert_true(port >= 1024);
    hx_vm_close(&vm);
    char path[128], *text;
    size_t len;
    struct stat st;
    snprintf(path, sizeof(path), "%s/small.credential0", folder);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 077, 0);
    assert_int_equal(hx_file_read(path, 4096, &text, &len, NULL), 0);
    assert_string_equal(text, "io.systemd.credential.binary:hx170.answers=c2NoZW1hID0gMQo=");
    free(text);
}

/* True if the arguments contain the text. */
static bool has(const struct hx_vm_args *args, const char *text)
{
    for (unsigned i = 0; i < args->n; i++)
        if (strstr(args->v[i], text))
            return true;
    return false;
}

static void test_arguments(void **state)
{
    (void)state;
    struct hx_vm_setup setup = small();
    struct hx_vm_args args;
    struct hx_error err;
    assert_int_equal(hx_vm_args_make(&setup, &args, &err), 0);
    assert_null(args.v[args.n]);
    assert_true(has(&args, "tcg,thread=multi"));
    assert_false(has(&args, "kvm"));
    assert_false(has(&args, "netdev"));
    hx_vm_args_free(&args);
    setup.network = true;
    assert_int_equal(hx_vm_args_make(&setup, &args, &err), 0);
    assert_true(has(&args, "restrict=on"));
    assert_true(has(&args, "hostfwd=tcp:127.0.0.1:0-:22"));
    assert_false(has(&args, "guestfwd"));
    assert_false(has(&args, "blkdebug"));
    assert_false(has(&args, "-kernel"));
    hx_vm_args_free(&args);
    setup.kernel = "/k", setup.initrd = "/i", setup.cmdline = "quiet";
    setup.disks[0].errors = "/rules";
    setup.disks[0].removable = true;
    assert_int_equal(hx_vm_args_make(&setup, &args, &err), 0);
    assert_true(has(&args, "driver=blkdebug,file.config=/rules"));
    assert_true(has(&args, "pcie-root-port,id=port0"));
    assert_true(has(&args, "id=drive0,bus=port0"));
    assert_true(has(&args, "-kernel"));
    hx_vm_args_free(&args);
}

static void test_bad_setup(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        struct hx_vm_setup setup;
        const char *message;
    } bad[] = {
        {"no name", {.folder = "/tmp", .memory_mib = 64, .cpus = 1}, "name"},
        {"comma", {.name = "a,b", .folder = "/tmp", .memory_mib = 64, .cpus = 1}, "comma"},
        {"memory", {.name = "a", .folder = "/tmp", .memory_mib = 1, .cpus = 1}, "1 MiB"},
        {"processors", {.name = "a", .folder = "/tmp", .memory_mib = 64, .cpus = 99}, "99"},
        {"variables",
         {.name = "a", .folder = "/tmp", .memory_mib = 64, .cpus = 1, .firmware = "/x"},
         "variables"},
        {"NVMe without serial",
         {.name = "a",
          .folder = "/tmp",
          .memory_mib = 64,
          .cpus = 1,
          .n_disks = 1,
          .disks = {{.path = "/x", .bus = HX_VM_NVME}}},
         "serial number"},
        {"kernel without initrd",
         {.name = "a", .folder = "/tmp", .memory_mib = 64, .cpus = 1, .kernel = "/k"},
         "initrd"},
        {"error rules",
         {.name = "a",
          .folder = "/tmp",
          .memory_mib = 64,
          .cpus = 1,
          .n_disks = 1,
          .disks = {{.path = "/x", .bus = HX_VM_IDE, .errors = "/a,b"}}},
         "error rules"},
        {"sector",
         {.name = "a",
          .folder = "/tmp",
          .memory_mib = 64,
          .cpus = 1,
          .n_disks = 1,
          .disks = {{.path = "/x", .bus = HX_VM_IDE, .sector = 520}}},
         "520"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hx_vm_args args;
        struct hx_error err;
        if (hx_vm_args_make(&bad[i].setup, &args, &err) != -EINVAL)
            fail_msg("%s: accepted", bad[i].what);
        if (!strstr(err.text, bad[i].message))
            fail_msg("%s: %s", bad[i].what, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_marker, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_exit_is_noticed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lost_timer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reset_boots_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_all_devices, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_arguments, set_up, tear_down),
        cmocka_unit_test(test_bad_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
