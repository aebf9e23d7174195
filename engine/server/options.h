/* Options of hx-engine (engine.conf, drop-ins, --section.key=value). */
#ifndef HX_SERVER_OPTIONS_H
#define HX_SERVER_OPTIONS_H

#include "base/conf.h"

enum hx_reasoning_field { HX_REASONING_CONTENT, HX_REASONING_PLAIN, HX_REASONING_BOTH };

enum hx_engram_mode { HX_ENGRAM_MODE_DIRECT, HX_ENGRAM_MODE_BUFFERED };

struct hx_server_options {
    char model[512], mode_name[16], backend[16];
    int64_t max_context, max_sequences, prefill_chunk, kv_tokens, drafts;
    double gate;
    char engram_paths[2048], engram_cache[32], engram_hot[512];
    int engram_mode;
    int64_t engram_slow;
    char listen[128];
    int64_t max_body, queue, max_connections, stop_grace, keepalive, idle, slow_reader;
    char model_aliases[512];
    int reasoning_field, effort_table;
    char key_file[512];
    bool allow_unauthenticated, metrics_auth, json_keepalive, log_prompts;
    char allowed_hosts[512], allowed_origins[512];
};

extern const struct hx_conf_option hx_server_option_rows[];
extern const int hx_server_n_option_rows;

#endif
