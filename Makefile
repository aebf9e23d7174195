# One entry point for everything. `make help` lists the targets; every folder with code has a
# module.mk that names its sources, the modules below it and the libraries it links.
#
#   BUILD=dir               where objects go (default build)
#   SAN=address,undefined   sanitizers; objects go to their own folder
#   V=1                     show the commands

BUILD  ?= build
SAN    ?=
VARIANT = $(if $(SAN),san-$(subst $(comma),-,$(SAN)),release)
comma  := ,
O      := $(BUILD)/$(VARIANT)
Q      := $(if $(V),,@)
CC     ?= gcc
AR     ?= ar
PYTHON ?= /usr/bin/python3

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Date of the source, Unix time: a clock before it is wrong.
SOURCE_TIME := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

CFLAGS  ?= -O2 -g
# No contraction and no fast math: the CPU back end is the oracle of every other back end.
HX_CFLAGS := -std=gnu17 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wvla -Wformat=2 -Wno-format-truncation -Wundef -Wcast-qual -Wpointer-arith -ffp-contract=off -fno-common -fPIE \
	-fstack-protector-strong -D_GNU_SOURCE -pthread -Iengine/include -Iengine -Iinstaller -Ip2p -Ifirmware-tools -Iimage -I$(O)/gen
HX_LDFLAGS := -pie -Wl,-z,relro,-z,now,--as-needed -pthread
ifneq ($(SAN),)
HX_CFLAGS  += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
HX_LDFLAGS += -fsanitize=$(SAN)
else
HX_CFLAGS  += -D_FORTIFY_SOURCE=2
endif

.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:

ALL_MODULES :=
ALL_PROGRAMS :=
ALL_TESTS :=

# $(call hx_closure,mods): the modules and everything below them, each before what it needs.
hx_closure = $(call hx_uniq_last,$(foreach m,$(1),$(m) $(call hx_closure_of,$(m))))
hx_closure_of = $(foreach d,$($(1)_DEPS),$(d) $(call hx_closure_of,$(d)))
hx_uniq_last = $(if $(1),$(call hx_uniq_last,$(filter-out $(lastword $(1)),$(1))) $(lastword $(1)))
hx_libs  = $(foreach m,$(call hx_closure,$(1)),$(O)/lib/libhx-$(m).a)
hx_sysl  = $(sort $(foreach m,$(call hx_closure,$(1)),$($(m)_LIBS)))

# $(call hx_module,name,folder): static library of name_SRCS, plus one test program for each
# tests/unit/<folder without engine/>/test_*.c
define hx_module_tpl
ALL_MODULES += $(1)
$(1)_DIR  := $(2)
$(1)_OBJS := $$(patsubst %.cu,$(CUDA_O)/$(2)/%.cu.o,$$(patsubst %.c,$(O)/obj/$(2)/%.o,$$($(1)_SRCS)))
$(O)/lib/libhx-$(1).a: $$($(1)_OBJS)
	@mkdir -p $$(@D)
	$$(Q)rm -f $$@ && $$(AR) rcs $$@ $$^
$(1)_TESTS := $$(patsubst tests/unit/%.c,$(O)/tests/%,$$(wildcard tests/unit/$(patsubst engine/%,%,$(2))/test_*.c))
ALL_TESTS += $$($(1)_TESTS)
test-$(1): $$($(1)_TESTS) $(BUILD)/data/tokenizer.json
	$$(Q)tests/run-unit.sh $$($(1)_TESTS)
.PHONY: test-$(1)
endef
hx_module = $(eval $(call hx_module_tpl,$(1),$(2)))

# $(call hx_program,name,main source,modules)
define hx_program_tpl
ALL_PROGRAMS += $(O)/bin/$(1)
$(O)/bin/$(1): $(O)/obj/$(patsubst %.c,%.o,$(2)) $$(call hx_libs,$(3))
	@mkdir -p $$(@D)
	@echo "  LD    $(1)"
	$$(Q)$$(CC) $$(HX_LDFLAGS) $$(LDFLAGS) -o $$@ $$< -Wl,--start-group $$(filter %.a,$$^) -Wl,--end-group $$(call hx_sysl,$(3)) -lm
endef
hx_program = $(eval $(call hx_program_tpl,$(1),$(2),$(3)))

MODULE_MK := $(wildcard engine/*/module.mk engine/*/*/module.mk installer/module.mk p2p/module.mk p2p/*/module.mk firmware-tools/module.mk image/module.mk)
include scripts/cuda.mk
include $(MODULE_MK)
-include $(wildcard tests/module.mk tests/*/*.mk docs/module.mk)

# Only before the first compilation: who includes it depends on it by the compiler's own list, and a new version is not everything anew.
$(O)/obj/%.o: %.c | $(O)/gen/hx/build_facts.h
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(HX_CFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# Rewritten only when the version changed, so that nothing is rebuilt for nothing.
$(O)/gen/hx/build_facts.h: FORCE
	@mkdir -p $(@D)
	@printf '#define HX_BUILD_VERSION "%s"\n#define HX_BUILD_VARIANT "%s"\n#define HX_BUILD_DATA "%s"\n#define HX_BUILD_TIME %s\n' '$(VERSION)' '$(VARIANT)' '$(BUILD)/data' '$(SOURCE_TIME)' > $@.new; \
	 if cmp -s $@.new $@; then rm -f $@.new; else mv $@.new $@; fi
FORCE:
.PHONY: FORCE

# A test program links its own module and whatever tests/unit/<path>/deps.mk adds in <module>_TEST_DEPS.
hx_test_module = $(firstword $(foreach m,$(ALL_MODULES),$(if $(filter $(1),$($(m)_TESTS)),$(m))))
.SECONDEXPANSION:
$(O)/tests/%: $(O)/obj/tests/unit/%.o $$(call hx_libs,$$(call hx_test_module,$$@) $$($$(call hx_test_module,$$@)_TEST_DEPS))
	@mkdir -p $(@D)
	@echo "  LD    test $*"
	$(Q)$(CC) $(HX_LDFLAGS) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
	  $(call hx_sysl,$(call hx_test_module,$@) $($(call hx_test_module,$@)_TEST_DEPS)) -lcmocka -lm

# Tokenizer and Engram map of the demo model, unpacked.
$(BUILD)/data/%: etc/demo/%.xz
	@mkdir -p $(@D)
	$(Q)xz -dkc $< > $@

all: $(ALL_PROGRAMS) $(BUILD)/data/tokenizer.json $(BUILD)/data/engram_map.i32

test: $(ALL_TESTS) $(BUILD)/data/tokenizer.json $(BUILD)/data/engram_map.i32
	$(Q)tests/run-unit.sh $(ALL_TESTS)

setup:
	$(Q)scripts/setup.sh
.PHONY: setup

include scripts/house.mk

clean:
	rm -rf $(BUILD)

-include $(shell find $(O)/obj $(CUDA_O) -name '*.d' 2>/dev/null)
.PHONY: all test clean
