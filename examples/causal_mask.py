"""Hide the future with a causal mask, written in three ways, and run the stages one by one."""

import numpy as np

import regard

NUMBERS = """
    -0.27766923  0.30586403  0.01057463  0.36409474 -0.41489623  1.15277481  0.63715732 -1.05318505
     -0.6823625  0.72444694  -1.4419607 -0.50095249 -0.04408113  0.68822858  1.05971024 -0.10210544
    -0.74758765  0.58988275   0.2740787  0.33826729  1.34593399  -0.1037819  0.87886222 -0.59395793
     0.45122425 -0.41196376  1.01399581  0.53620411 -0.80208738  1.57122979 -0.97703709 -1.46250139

     -0.4708874  1.64177464 -1.38780232  1.71701544  1.01333479  0.62804628 -0.54720871  0.94657378
     0.27079892   0.3888408  1.06496911  0.07948627  -1.4330064  0.13770432  0.31164302 -0.14493827
     1.11200785  1.39342085  0.45975428 -1.09075613  0.65111229 -0.76908524  0.17459603  1.11260402
     1.95817072  0.52294909  0.84582026 -0.61544628 -0.35686193 -0.79044713 -0.46193641 -1.23709805

     0.89056773 -0.87976587 -0.44480487  0.96568199  1.63254008   1.2195493  0.71989661  0.77845321
    -0.90588885 -0.07982795 -1.01866175  1.84510543  0.13146088 -1.32809874 -0.40017139  1.07784997
     0.38218721 -2.68105677  1.04859167  0.70093381 -1.25073563  0.09439338 -2.07207328  -1.2197445
     1.18827287  1.06620003 -1.19065712  1.71442776 -0.25029707  0.96933714  0.83646095 -1.27176068
"""
QUERY, KEY, VALUE = np.array(NUMBERS.split(), float).reshape(3, 4, 8)


def main() -> None:
    """Print the weights under a causal mask, and compare the ways to specify it."""
    np.set_printoptions(precision=4, suppress=True)
    visible = regard.masks.causal(4)
    output, weights = regard.scaled_dot_product_attention(
        QUERY, KEY, VALUE, visible, return_weights=True
    )
    print("weights: each row is a query, and no query sees a later key")
    print(weights)
    print("\nthe first position sees only itself, so its output is its value")
    print(np.stack([output[0], VALUE[0]]))

    additive = regard.masks.as_additive(visible, np.float64)
    forms = {
        "with a 0/-inf mask": regard.scaled_dot_product_attention(QUERY, KEY, VALUE, additive),
        "with is_causal=True": regard.scaled_dot_product_attention(
            QUERY, KEY, VALUE, is_causal=True
        ),
        "stage by stage": stage_by_stage(additive),
    }
    print("\nlargest difference from that output")
    for name, other in forms.items():
        print(f"  {name:20} {np.abs(other - output).max():.0e}")


def stage_by_stage(mask: np.ndarray) -> np.ndarray:
    """Run the four stages that the fused call combines."""
    scores = regard.matmul(QUERY, KEY.T)
    scaled = regard.scale(scores, 1 / np.sqrt(QUERY.shape[-1]))
    weights = regard.softmax(regard.apply_mask(scaled, mask))
    print(f"\nvariance of scores {scores.var():.4f}, scaled {scaled.var():.4f}")
    return regard.matmul(weights, VALUE)


if __name__ == "__main__":
    main()
