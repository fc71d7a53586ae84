#pragma once

// What the dispatch reads from the CPU against what the compiler's own run-time library does, where that is linked.
void test_cpu_features();
