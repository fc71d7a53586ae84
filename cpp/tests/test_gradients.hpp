// Gradients and derivatives along a direction, on the active target.
#pragma once

template <class T>
void test_gradients();
