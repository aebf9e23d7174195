/* One virtual machine: its description, its QEMU process, its serial port, its monitor. Software
 * emulation only, since the /dev/kvm of build hosts often opens and then cannot run firmware
 * (docs/image-tests.md). */
#ifndef HX_TESTS_IMAGE_VM_H
#define HX_TESTS_IMAGE_VM_H

#include <stdbool.h>
#include <stdint.h>

#include "image/child.h"
#include "image/serial.h"

#define HX_VM_MAX_DISKS       6
#define HX_VM_MAX_CREDENTIALS 8

enum hx_vm_bus { HX_VM_NVME, HX_VM_USB, HX_VM_VIRTIO, HX_VM_IDE };

/* Strings belong to the caller and live as long as the machine. */
struct hx_vm_disk {
    const char *path;   /* raw image */
    const char *serial; /* NULL: none (USB, IDE) */
    enum hx_vm_bus bus;
    unsigned sector; /* bytes of a logical sector, 0: 512 */
    int boot;        /* place in the boot order from 0 on, -1: not booted from */
    bool read_only;
    bool snapshot; /* writes are forgotten when QEMU ends */
    /* NULL, or an existing empty file that gets every write and flush in order (QEMU's
     * blklogwrites, read by writelog.h). */
    const char *write_log;
    /* NULL, or a file with the rules of QEMU's blkdebug: reads that fail. Not with write_log,
     * snapshot. */
    const char *errors;
    bool removable; /* in a port of its own: device_del driveN pulls it, N: its place in the list */
};

/* systemd credential handed over as an SMBIOS string of type 11. */
struct hx_vm_credential {
    const char *name;
    const char *value;
};

struct hx_vm_setup {
    const char *name;     /* of the files below folder; letters, digits, '-' */
    const char *folder;   /* exists; gets NAME.log, NAME.serial, NAME.pid, NAME.vars, sockets */
    const char *firmware; /* OVMF code, NULL: the built-in BIOS */
    const char *kernel, *initrd,
        *cmdline;              /* started at once by the built-in BIOS; NULL: from a disk */
    const char *firmware_vars; /* template that is copied to NAME.vars unless that exists */
    unsigned memory_mib;       /* 64..65536 */
    unsigned cpus;             /* 1..16 */
    struct hx_vm_disk disks[HX_VM_MAX_DISKS];
    unsigned n_disks;
    struct hx_vm_credential credentials[HX_VM_MAX_CREDENTIALS];
    unsigned n_credentials;
    bool network;        /* card in a closed network: only SSH in, only the relay out */
    const char *relay;   /* command that serves one connection to HX_VM_FILES, NULL: none */
    bool cable_out;      /* network card without link until the monitor's "set_link card0 on" */
    bool watchdog;       /* of the chip set: a reset when it bites */
    bool stop_at_reboot; /* QEMU ends instead of booting again */
    /* The guest's clock follows its instructions, and jumps to the next timer while it waits: ten
     * minutes of waiting pass at once. One processor; the network's own timers do not fit, so use
     * the serial port. */
    bool skip_waiting;
    const char *clock; /* of the guest when it starts, "1970-01-01T00:00:00"; NULL: the host's */
};

/* Address and port of the loopback file server as the guest sees it. */
#define HX_VM_FILES_HOST "10.0.2.100"
#define HX_VM_FILES_PORT 8080

struct hx_vm {
    const struct hx_vm_setup *setup;
    struct hx_child qemu;
    struct hx_serial serial;
    int log_fd;      /* serial log, read as it grows */
    int console_fd;  /* serial port, -1 until something is typed */
    int64_t started; /* hx_child_clock */
    size_t read_to;  /* text position behind the last marker */
    /* Gets what the guest writes once the console is open; NULL: nobody. The log has some bytes
     * twice then, those that QEMU could not deliver at once. */
    void (*console)(void *ctx, const void *bytes, size_t n);
    void *console_ctx;
};

/* Arguments for QEMU, freed with hx_vm_args_free. -EINVAL names the field at fault; credentials are
 * written to files of mode 0600 in the folder. */
struct hx_vm_args {
    char **v; /* NULL-terminated */
    unsigned n;
};
int hx_vm_args_make(const struct hx_vm_setup *setup, struct hx_vm_args *args,
                    struct hx_error *err) HX_MUST;
void hx_vm_args_free(struct hx_vm_args *args);

/* "qemu-system-x86_64" is found and answers; false with the reason in err. */
bool hx_vm_available(struct hx_error *err);
int hx_vm_start(struct hx_vm *vm, const struct hx_vm_setup *setup, struct hx_error *err) HX_MUST;
/* Waits for the marker behind the last one that was found. Ends early, with -EPIPE and the end of
 * both logs, when QEMU has exited, with -EIO when the guest says that its timer is gone; -ETIMEDOUT
 * with the last lines at the deadline. */
int hx_vm_wait(struct hx_vm *vm, const char *marker, int64_t deadline,
               struct hx_error *err) HX_MUST;
/* The same for the first of n markers that comes; *which is its index. */
int hx_vm_wait_any(struct hx_vm *vm, const char *const *markers, unsigned n, unsigned *which,
                   int64_t deadline, struct hx_error *err) HX_MUST;
/* Waits for QEMU's own end (power off, or a reboot with stop_at_reboot). */
int hx_vm_wait_exit(struct hx_vm *vm, int64_t deadline, struct hx_error *err) HX_MUST;
/* Types text into the serial port; "" only opens it. */
int hx_vm_type(struct hx_vm *vm, const char *text, struct hx_error *err) HX_MUST;
/* Once something was typed QEMU sends there what the guest writes, besides the log; unread it stops
 * the guest's port after a few hundred bytes. The waits do it. */
void hx_vm_drain(struct hx_vm *vm);
/* One command of the human monitor; *answer (may be NULL) gets what it says, without echo and
 * prompt. */
int hx_vm_monitor(struct hx_vm *vm, const char *command, struct hx_buf *answer,
                  struct hx_error *err) HX_MUST;
/* Port on 127.0.0.1 that leads to the guest's port 22; the kernel chose it. */
int hx_vm_ssh_port(struct hx_vm *vm, unsigned *port, struct hx_error *err) HX_MUST;
/* Power cut: SIGKILL. */
void hx_vm_kill(struct hx_vm *vm);
/* Milliseconds since the start. */
int64_t hx_vm_age(const struct hx_vm *vm);
/* Kills what still runs and frees; the logs stay in the folder. */
void hx_vm_close(struct hx_vm *vm);

#endif
