# Broken model folders against everything that opens one (test_hostile.py).
HOSTILE_OPENER := $(O)/tests/model/open_model

$(HOSTILE_OPENER): $(O)/obj/tests/model/open_model.o $(call hx_libs,run)
	@mkdir -p $(@D)
	@echo "  LD    open_model"
	$(Q)$(CC) $(HX_LDFLAGS) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
	  $(call hx_sysl,run) -lm

test-hostile: $(HOSTILE_OPENER) $(ALL_PROGRAMS)
	$(Q)$(PYTHON) tests/model/test_hostile.py --opener $(HOSTILE_OPENER) --bin $(O)/bin
.PHONY: test-hostile
