# Fuzz targets: every tests/fuzz/fuzz_NAME.c with an LLVMFuzzerTestOneInput. Built with clang, own objects.
#
#   make fuzz FUZZ_SECONDS=600 [FUZZ=name ...]   each target for that long
#   make fuzz-smoke                              every target over its corpus, then 20 s in all
#
# fuzz_NAME := the modules that a target calls (what lies below them is linked too).

fuzz_json             := base
fuzz_utf8             := base
fuzz_conf             := base
fuzz_engram_hash      := engram
fuzz_token_map        := engram
fuzz_safetensors      := model
fuzz_config           := model
fuzz_tokenizer_json   := text
fuzz_tokenizer_encode := text
fuzz_chat_request     := text
fuzz_reply            := text
fuzz_request          := server run
fuzz_klog             := hw
fuzz_pci              := hw
fuzz_smi              := p2p hw
fuzz_measured         := p2p hw
fuzz_fetch_journal    := fetch
fuzz_fetch_lock       := fetch
fuzz_fetch_sthdr      := fetch
fuzz_fetch_headers    := fetch
fuzz_bundle_manifest  := cards
fuzz_bundle_tar       := cards
fuzz_bundle_module    := cards
fuzz_bundle_journal   := cards
fuzz_setup_answers    := setup
fuzz_init_gpt         := init
fuzz_update_bundle    := disk

FUZZ_CC      ?= clang
FUZZ_SECONDS ?= 60
FUZZ_SMOKE   ?= 20
FUZZ_DIR     := $(BUILD)/fuzz
FUZZ_ALL     := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
FUZZ         ?= $(FUZZ_ALL)
# gcc is the judge of warnings; here only behaviour counts.
FUZZ_CFLAGS  := $(filter-out -W% -fsanitize=% -D_FORTIFY_SOURCE%,$(HX_CFLAGS)) -w -O1 -g -fno-omit-frame-pointer \
	-fsanitize=address,undefined -fno-sanitize-recover=all

# fuzz_NAME_DATA := files that the target opens.
fuzz_tokenizer_encode_DATA := $(BUILD)/data/tokenizer.json
fuzz_request_DATA          := $(BUILD)/data/tokenizer.json

fuzz_modules = $(call hx_closure,$(if $(fuzz_$(1)),$(fuzz_$(1)),$(error tests/fuzz/fuzz.mk has no row for $(1))))
fuzz_objects = $(foreach m,$(call fuzz_modules,$(1)),$(patsubst %.c,$(FUZZ_DIR)/obj/$($(m)_DIR)/%.o,$(filter-out cuda/%,$($(m)_SRCS))))

$(FUZZ_DIR)/obj/%.o: %.c $(O)/gen/hx/build_facts.h
	@mkdir -p $(@D)
	@echo "  FUZZ-CC $<"
	$(Q)$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<

define fuzz_target_tpl
$(FUZZ_DIR)/bin/fuzz_$(1): $(FUZZ_DIR)/obj/tests/fuzz/fuzz_$(1).o $(call fuzz_objects,$(1))
	@mkdir -p $$(@D)
	@echo "  FUZZ-LD $(1)"
	$$(Q)$$(FUZZ_CC) -fsanitize=fuzzer,address,undefined -pthread -o $$@ $$^ $(call hx_sysl,$(fuzz_$(1))) -lm
endef
$(foreach t,$(FUZZ_ALL),$(eval $(call fuzz_target_tpl,$(t))))

fuzz_data = $(foreach t,$(1),$(fuzz_$(t)_DATA))

fuzz: $(FUZZ:%=$(FUZZ_DIR)/bin/fuzz_%) $(call fuzz_data,$(FUZZ))
	$(Q)tests/fuzz/run.sh $(FUZZ_DIR) $(FUZZ_SECONDS) $(FUZZ)

fuzz-smoke: $(FUZZ_ALL:%=$(FUZZ_DIR)/bin/fuzz_%) $(call fuzz_data,$(FUZZ_ALL))
	$(Q)tests/fuzz/run.sh --total $(FUZZ_DIR) $(FUZZ_SMOKE) $(FUZZ_ALL)

-include $(shell find $(FUZZ_DIR)/obj -name '*.d' 2>/dev/null)
.PHONY: fuzz fuzz-smoke
