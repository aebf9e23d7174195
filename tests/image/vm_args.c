/* The QEMU command line of a machine. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "image/vm.h"

#define MAX_ARGS 128

static void add(struct hx_vm_args *a, bool *failed, const char *fmt, ...) HX_PRINTF(3, 4);

static void add(struct hx_vm_args *a, bool *failed, const char *fmt, ...)
{
    if (*failed || a->n + 1 >= MAX_ARGS) {
        *failed = true;
        return;
    }
    va_list list;
    va_start(list, fmt);
    int n = vasprintf(&a->v[a->n], fmt, list);
    va_end(list);
    if (n < 0) {
        a->v[a->n] = NULL;
        *failed = true;
        return;
    }
    a->n++;
}

void hx_vm_args_free(struct hx_vm_args *args)
{
    for (unsigned i = 0; i < args->n; i++)
        free(args->v[i]);
    free(args->v);
    *args = (struct hx_vm_args){0};
}

/* QEMU takes a comma as the end of a value and a quote in no special way. */
static int check_text(const char *what, const char *text, struct hx_error *err)
{
    if (!text || !*text)
        return hx_fail(err, -EINVAL, "machine: %s is missing", what);
    if (strpbrk(text, ",\n"))
        return hx_fail(err, -EINVAL, "machine: %s '%s' has a comma or a newline", what, text);
    return 0;
}

static int check(const struct hx_vm_setup *s, struct hx_error *err)
{
    int r = check_text("name", s->name, err);
    if (!r)
        r = check_text("folder", s->folder, err);
    if (r)
        return r;
    /* A socket's path may have 107 bytes. */
    if (strlen(s->folder) + strlen(s->name) > 90)
        return hx_fail(err, -EINVAL, "machine %s: the path of its folder is too long: %s", s->name,
                       s->folder);
    if (s->memory_mib < 64 || s->memory_mib > 65536)
        return hx_fail(err, -EINVAL, "machine %s: %u MiB of memory, expected 64 to 65536", s->name,
                       s->memory_mib);
    if (s->cpus < 1 || s->cpus > 16)
        return hx_fail(err, -EINVAL, "machine %s: %u processors, expected 1 to 16", s->name,
                       s->cpus);
    if (s->n_disks > HX_VM_MAX_DISKS || s->n_credentials > HX_VM_MAX_CREDENTIALS)
        return hx_fail(err, -EINVAL, "machine %s: too many disks or credentials", s->name);
    if (s->firmware && !s->firmware_vars)
        return hx_fail(err, -EINVAL, "machine %s: firmware without a file of its variables",
                       s->name);
    if (s->kernel && (!s->initrd || !s->cmdline))
        return hx_fail(err, -EINVAL, "machine %s: a kernel without initrd or command line",
                       s->name);
    for (unsigned i = 0; i < s->n_disks; i++) {
        const struct hx_vm_disk *d = &s->disks[i];
        r = check_text("the path of a disk", d->path, err);
        if (!r && d->serial)
            r = check_text("the serial number of a disk", d->serial, err);
        if (!r && d->bus == HX_VM_NVME && !d->serial)
            r = hx_fail(err, -EINVAL, "machine %s: an NVMe drive needs a serial number", s->name);
        if (!r && d->write_log)
            r = check_text("the path of a write log", d->write_log, err);
        if (!r && d->errors)
            r = check_text("the path of the error rules", d->errors, err);
        if (!r && d->sector && d->sector != 512 && d->sector != 4096)
            r = hx_fail(err, -EINVAL, "machine %s: sectors of %u bytes, expected 512 or 4096",
                        s->name, d->sector);
        if (r)
            return r;
    }
    return 0;
}

static void add_disk(struct hx_vm_args *a, bool *f, const struct hx_vm_disk *d, unsigned i)
{
    static const char *const devices[] = {
        [HX_VM_NVME] = "nvme",
        [HX_VM_USB] = "usb-storage,bus=usb.0,removable=on",
        [HX_VM_VIRTIO] = "virtio-blk-pci",
        [HX_VM_IDE] = "ide-hd",
    };
    add(a, f, "-drive");
    if (d->write_log)
        add(a, f,
            "if=none,id=disk%u,driver=blklogwrites,file.driver=raw,file.file.driver=file,"
            "file.file.filename=%s,log.driver=file,log.filename=%s,log-sector-size=512",
            i, d->path, d->write_log);
    else if (d->errors)
        add(a, f,
            "if=none,id=disk%u,driver=raw,file.driver=blkdebug,file.config=%s,"
            "file.image.driver=file,file.image.filename=%s",
            i, d->errors, d->path);
    else
        add(a, f, "if=none,id=disk%u,format=raw,file=%s,cache=writeback,discard=unmap%s%s", i,
            d->path, d->read_only ? ",read-only=on" : "", d->snapshot ? ",snapshot=on" : "");
    char more[256] = "";
    size_t n = 0;
    if (d->serial)
        n += (size_t)snprintf(more + n, sizeof(more) - n, ",serial=%.60s", d->serial);
    if (d->sector)
        n +=
            (size_t)snprintf(more + n, sizeof(more) - n,
                             ",logical_block_size=%u,physical_block_size=%u", d->sector, d->sector);
    if (d->boot >= 0)
        snprintf(more + n, sizeof(more) - n, ",bootindex=%d", d->boot);
    if (d->removable) {
        add(a, f, "-device");
        add(a, f, "pcie-root-port,id=port%u,chassis=%u,slot=%u", i, i + 1, i + 1);
        n = strlen(more);
        snprintf(more + n, sizeof(more) - n, ",id=drive%u,bus=port%u", i, i);
    }
    add(a, f, "-device");
    add(a, f, "%s,drive=disk%u%s", devices[d->bus], i, more);
}

/* The credential as systemd reads it; a file, so that a process list does not show it. */
static int write_credential(const struct hx_vm_setup *s, unsigned i, const char *path,
                            struct hx_error *err)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const struct hx_vm_credential *c = &s->credentials[i];
    struct hx_buf b = HX_BUF_INIT(256 << 10);
    hx_buf_printf(&b, "io.systemd.credential.binary:%s=", c->name);
    const unsigned char *p = (const unsigned char *)c->value;
    size_t n = strlen(c->value);
    for (size_t at = 0; at < n; at += 3) {
        unsigned bits = (unsigned)p[at] << 16;
        bits |= at + 1 < n ? (unsigned)p[at + 1] << 8 : 0;
        bits |= at + 2 < n ? p[at + 2] : 0;
        hx_buf_putc(&b, (uint8_t)digits[bits >> 18]);
        hx_buf_putc(&b, (uint8_t)digits[(bits >> 12) & 63]);
        hx_buf_putc(&b, (uint8_t)(at + 1 < n ? digits[(bits >> 6) & 63] : '='));
        hx_buf_putc(&b, (uint8_t)(at + 2 < n ? digits[bits & 63] : '='));
    }
    int r = 0;
    int fd = -1;
    if (b.failed)
        r = hx_fail(err, -EMSGSIZE, "credential %s is too long", c->name);
    else if ((fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0)
        r = hx_fail_errno(err, errno, "%s", path);
    else
        r = hx_file_pwrite(fd, path, b.data, b.len, 0, err);
    if (fd >= 0)
        close(fd);
    hx_buf_done(&b);
    return r;
}

static int add_credentials(struct hx_vm_args *a, bool *f, const struct hx_vm_setup *s,
                           struct hx_error *err)
{
    for (unsigned i = 0; i < s->n_credentials; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s.credential%u", s->folder, s->name, i);
        int r = write_credential(s, i, path, err);
        if (r)
            return r;
        add(a, f, "-smbios");
        add(a, f, "type=11,path=%s", path);
    }
    return 0;
}

static void add_network(struct hx_vm_args *a, bool *f, const struct hx_vm_setup *s)
{
    add(a, f, "-netdev");
    if (s->relay)
        add(a, f, "user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:0-:22,guestfwd=tcp:%s:%d-cmd:%s",
            HX_VM_FILES_HOST, HX_VM_FILES_PORT, s->relay);
    else
        add(a, f, "user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:0-:22");
    add(a, f, "-device");
    add(a, f, "virtio-net-pci,netdev=net0,id=card0,mac=52:54:00:17:00:01,romfile=");
}

int hx_vm_args_make(const struct hx_vm_setup *s, struct hx_vm_args *args, struct hx_error *err)
{
    int r = check(s, err);
    if (r)
        return r;
    struct hx_vm_args a = {.v = calloc(MAX_ARGS + 1, sizeof(*a.v))};
    bool failed = !a.v;
    bool usb = false;
    for (unsigned i = 0; i < s->n_disks; i++)
        usb |= s->disks[i].bus == HX_VM_USB;
    add(&a, &failed, "qemu-system-x86_64");
    static const char *const fixed[] = {
        "-nodefaults", "-no-user-config",
        "-machine",    "q35",
        "-cpu",        "max",
        "-display",    "none",
        "-vga",        "std",
        "-uuid",       "17017017-0170-4170-8170-170170170170",
    };
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        add(&a, &failed, "%s", fixed[i]);
    add(&a, &failed, "-accel");
    add(&a, &failed, s->skip_waiting ? "tcg,thread=single" : "tcg,thread=multi");
    if (s->skip_waiting) {
        add(&a, &failed, "-icount");
        add(&a, &failed, "shift=0,sleep=off");
    }
    if (s->skip_waiting || s->clock) {
        add(&a, &failed, "-rtc");
        add(&a, &failed, "base=%s,clock=%s", s->clock ? s->clock : "utc",
            s->skip_waiting ? "vm" : "host");
    }
    add(&a, &failed, "-name");
    add(&a, &failed, "%s", s->name);
    add(&a, &failed, "-m");
    add(&a, &failed, "%u", s->memory_mib);
    add(&a, &failed, "-smp");
    add(&a, &failed, "%u", s->skip_waiting ? 1 : s->cpus);
    if (s->firmware) {
        add(&a, &failed, "-drive");
        add(&a, &failed, "if=pflash,unit=0,format=raw,readonly=on,file=%s", s->firmware);
        add(&a, &failed, "-drive");
        add(&a, &failed, "if=pflash,unit=1,format=raw,file=%s/%s.vars", s->folder, s->name);
    }
    if (s->kernel) {
        const char *const direct[] = {"-kernel", s->kernel, "-initrd",
                                      s->initrd, "-append", s->cmdline};
        for (size_t i = 0; i < sizeof(direct) / sizeof(direct[0]); i++)
            add(&a, &failed, "%s", direct[i]);
    }
    add(&a, &failed, "-chardev");
    add(&a, &failed,
        "socket,id=serial0,path=%s/%s.tty,server=on,wait=off,logfile=%s/%s.serial,logappend=on",
        s->folder, s->name, s->folder, s->name);
    add(&a, &failed, "-serial");
    add(&a, &failed, "chardev:serial0");
    add(&a, &failed, "-chardev");
    add(&a, &failed, "socket,id=mon0,path=%s/%s.mon,server=on,wait=off", s->folder, s->name);
    add(&a, &failed, "-mon");
    add(&a, &failed, "chardev=mon0,mode=readline");
    add(&a, &failed, "-device");
    add(&a, &failed, "virtio-rng-pci");
    if (usb) {
        add(&a, &failed, "-device");
        add(&a, &failed, "qemu-xhci,id=usb");
    }
    for (unsigned i = 0; i < s->n_disks; i++)
        add_disk(&a, &failed, &s->disks[i], i);
    if (s->network)
        add_network(&a, &failed, s);
    if (s->watchdog) {
        /* The board's own timer, as in a box; without this it counts and does nothing. */
        add(&a, &failed, "-global");
        add(&a, &failed, "ICH9-LPC.noreboot=false");
        add(&a, &failed, "-action");
        add(&a, &failed, "watchdog=reset");
    }
    if (s->stop_at_reboot)
        add(&a, &failed, "-no-reboot");
    r = add_credentials(&a, &failed, s, err);
    if (!r && failed)
        r = hx_fail(err, -ENOMEM, "machine %s: out of memory or too many arguments", s->name);
    if (r) {
        hx_vm_args_free(&a);
        return r;
    }
    *args = a;
    return 0;
}
