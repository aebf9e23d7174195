# hx-inspect memory, hx-bench step and extrapolate as a user calls them.
test-tools: $(O)/bin/hx-inspect $(O)/bin/hx-bench
	$(Q)$(PYTHON) tests/cli/test_tools.py $(O)/bin
.PHONY: test-tools
