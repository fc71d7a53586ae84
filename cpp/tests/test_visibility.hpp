// Attention to the keys that a query sees by position, on the active target.
#pragma once

template <class T>
void test_visibility();
