/* The table of screens. */
#include <string.h>

#include "setup/setup.h"

const struct hx_setup_step hx_setup_steps[] = {
    {"name", "Device name", "name of this machine in the network", NULL, hx_setup_ask_name, NULL,
     NULL},
    {"key", "SSH keys", "who may log in", NULL, hx_setup_ask_key, NULL, NULL},
    {"network", "Network", "address, router, name servers, VLAN, proxy", NULL, hx_setup_ask_network,
     NULL, NULL},
    {"time", "Time", "where the clock is set from", NULL, hx_setup_ask_time, NULL, NULL},
    {"driver", "Driver bundle", "driver and unlock files of the cards", NULL, hx_setup_ask_driver,
     hx_setup_apply_driver, hx_setup_undo_driver},
    {"hardware", "Hardware report", "what was found, and what to do about it", NULL,
     hx_setup_ask_hardware, NULL, NULL},
    {"model", "Model and storage", "what to download, from where, when", NULL, hx_setup_ask_model,
     hx_setup_apply_model, NULL},
    {"performance", "Performance", "power limit, layout, length of conversations", NULL,
     hx_setup_ask_performance, NULL, NULL},
    {"review", "Review", "everything once more, then it is put in force", NULL, hx_setup_ask_review,
     NULL, NULL},
    {"status", "Status", "how far it is, and how to connect", NULL, hx_setup_ask_status, NULL,
     NULL},
};
const int hx_setup_n_steps = sizeof(hx_setup_steps) / sizeof(hx_setup_steps[0]);

int hx_setup_find(const char *id)
{
    for (int i = 0; i < hx_setup_n_steps; i++) {
        if (strcmp(hx_setup_steps[i].id, id) == 0)
            return i;
    }
    return -1;
}
