/* hx-cards: what cards are in the machine, what state they are in, and the owner's driver bundle.
 */
#include <stdio.h>
#include <string.h>

#include <hx/build_facts.h>

#include "options.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct hx_cards_options *o);
    } commands[] = {
        {"list", hx_cards_list},
        {"state", hx_cards_state},
        {"bundle", hx_cards_bundle},
        {"watch", hx_cards_watch},
    };
    struct hx_cards_options o;
    struct hx_error err = {0};
    int code = hx_cards_options_read(argc, argv, &o);
    if (code == 0 && o.help) {
        hx_cards_help();
    } else if (code == 0 && o.version) {
        printf("hx-cards %s (%s)\n", HX_BUILD_VERSION, HX_BUILD_VARIANT);
    } else if (code == 0 && o.explain) {
        code = hx_cards_explain(o.explain);
    } else if (code == 0 && hx_cards_options_open(&o, &err) < 0) {
        code = hx_cards_error(HX_EXIT_USAGE, &err);
    } else if (code == 0) {
        const char *name = o.n_words ? o.word[0] : "list";
        size_t n = sizeof(commands) / sizeof(commands[0]), i = 0;
        while (i < n && strcmp(commands[i].name, name) != 0)
            i++;
        if (i < n) {
            code = commands[i].run(&o);
        } else {
            fprintf(stderr, "hx-cards: unknown command '%s'; see hx-cards --help\n", name);
            code = HX_EXIT_USAGE;
        }
    }
    hx_cards_options_done(&o);
    return code;
}
