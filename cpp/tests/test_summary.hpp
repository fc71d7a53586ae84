// What is to be known of attention's weights, and their maps, on the active target.
#pragma once

template <class T>
void test_summary();
