// Attention to keys and values in pages, and as int8, on the active target.
#pragma once

void test_kv_rows();
