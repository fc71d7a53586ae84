// Softmax of columns, one number at a time: column c is scores[c], scores[c + width], ...
#pragma once

#include <algorithm>
#include <cmath>

// Replaces the scores by exponentials, and writes the sum of each column.
inline void softmax_of_columns(float* scores, int length, int width, float* sums) {
  for (int c = 0; c < width; ++c) {
    float* column = scores + c;
    float largest = *column, sum = 0;
    for (int j = 1; j < length; ++j) largest = std::max(largest, column[j * width]);
    for (int j = 0; j < length; ++j)
      sum += column[j * width] = std::exp(column[j * width] - largest);
    sums[c] = sum;
  }
}
