"""All bounds, as functions that return floats. `conditions.check_conditions` checks their conditions.

``drift``             how far the model can move away from the anchor
``forgetting``        how the loss of earlier tasks can change
``convergence``       what the rounds converge to, and how fast
``paper_statements``  the paper's statements exactly as printed
"""

from fedspecial.theory.bounds.convergence import (
    Surrogate,
    SurrogateTerms,
    contraction_factor,
    lam_for_mu,
    quadratic_stationary,
    surrogate,
    surrogate_bound,
    task_uniform_bound,
)
from fedspecial.theory.bounds.drift import (
    anchored_drift_cap,
    drift_radius,
    drift_radius_clip,
    drift_radius_from_deltas,
    drift_radius_per_weight,
    drift_step,
    geometric_limit,
    half_life,
    paper_drift_bound_sq,
    special_c_drift_radius,
    special_c_literal_drift_radius,
)
from fedspecial.theory.bounds.forgetting import (
    bkt_slack,
    bkt_step_max,
    chained_forgetting_cap,
    forgetting_cap,
    old_grad_norm_upper,
    radius_for_budget,
    sigma_task_bound,
)
from fedspecial.theory.bounds.paper_statements import (
    PsiTerms,
    every_iterate_cap,
    paper_bkt_client_lr_max,
    paper_bkt_server_lr_max,
    paper_bkt_slack,
    paper_c12,
    paper_convergence_bound,
    paper_convergence_gap_term,
    paper_psi,
    paper_rate_radius,
    paper_rate_steps,
)

__all__ = [
    "PsiTerms",
    "Surrogate",
    "SurrogateTerms",
    "anchored_drift_cap",
    "bkt_slack",
    "bkt_step_max",
    "chained_forgetting_cap",
    "contraction_factor",
    "drift_radius",
    "drift_radius_clip",
    "drift_radius_from_deltas",
    "drift_radius_per_weight",
    "drift_step",
    "every_iterate_cap",
    "forgetting_cap",
    "geometric_limit",
    "half_life",
    "lam_for_mu",
    "old_grad_norm_upper",
    "paper_bkt_client_lr_max",
    "paper_bkt_server_lr_max",
    "paper_bkt_slack",
    "paper_c12",
    "paper_convergence_bound",
    "paper_convergence_gap_term",
    "paper_drift_bound_sq",
    "paper_psi",
    "paper_rate_radius",
    "paper_rate_steps",
    "quadratic_stationary",
    "radius_for_budget",
    "sigma_task_bound",
    "special_c_drift_radius",
    "special_c_literal_drift_radius",
    "surrogate",
    "surrogate_bound",
    "task_uniform_bound",
]
