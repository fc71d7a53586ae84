// Attention of every kind of case, on the active target.
#pragma once

template <class T>
void test_attention();
